"""What a poll of an asynchronous job's replica changes, and in which order it is stored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from rljob_runtime.coordinator.asynchronous.generation import AsyncGeneration
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.protocols import Delta, EngineStats, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, TrajectoryKey

ENDED, MOVED = TrajectoryKey(PromptKey(0, 1), 0), TrajectoryKey(PromptKey(0, 2), 0)
LEASES = {ENDED: Lease("a", 1), MOVED: Lease("a", 2)}


def delta(key: TrajectoryKey, reason: FinishReason | None = None) -> Delta:
    return Delta(key, LEASES[key].attempt, 0, (5, 6), (-0.1, -0.2), 3, reason)


def test_a_move_stores_no_tokens_of_an_ended_response_without_its_end() -> None:
    """Else a coordinator that dies in between continues the response past its end."""
    stored: list[str] = []
    receiver = TokenReceiver(GenerationStats())
    for key, lease in LEASES.items():
        receiver.partials.open(key, lease, 3)

    async def commit_move(key: TrajectoryKey, lease: Lease, offset: int) -> None:
        stored.append(f"move with {[str(one.key) for one in receiver.drain_unsaved()]}")

    async def do(work: object) -> None:
        stored.append("ends")

    generation = AsyncGeneration.__new__(AsyncGeneration)
    generation._receiver = receiver
    generation._dispatcher = SimpleNamespace(commit_move=commit_move)
    generation._context = SimpleNamespace(store=SimpleNamespace(do=do))
    generation._repack_monitor = SimpleNamespace(record_end=lambda response: None)
    generation._scoring = SimpleNamespace(start=lambda response: stored.append(f"reward of {response.key}"))
    generation.groups = SimpleNamespace(
        moving_to=lambda key: LEASES[MOVED] if key == MOVED else None,
        commit_move=lambda key, lease: True,
        lease=LEASES.get,
        generated=lambda key, lease: True,
    )
    report = ReplicaReport(
        "boot", 2, (delta(ENDED, FinishReason.STOP), delta(MOVED)), 3, EngineStats(1, 0, 0.0, 0, 0, 0, 0, 0)
    )
    asyncio.run(generation._collect(SimpleNamespace(name="a"), report))
    assert stored == ["ends", f"reward of {ENDED}", "move with []"]
