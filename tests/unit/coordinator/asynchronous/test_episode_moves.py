"""Merges of replicas whose responses are episodes: what a plan counts, and what happens in which order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rljob_runtime.coordinator.asynchronous.dispatch import Dispatcher
from rljob_runtime.coordinator.asynchronous.repack import BusyReplica, RepackMonitor
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.asynchronous.repack import Merge, ReplicaLoad
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round_plan import Launch
from tests.support.simulated_job import job

KEY = TrajectoryKey(PromptKey(0, 3), 1)
OTHER = TrajectoryKey(PromptKey(0, 4), 0)


def test_a_plan_counts_what_tools_answered() -> None:
    """An episode of 90 tokens, 10 of them the prompt's and 20 the model's; and one without a turn."""
    seen: list[Any] = []

    def plan(loads: Any, rules: Any, tails: Any) -> tuple[Merge, ...]:
        seen.append((loads, tails))
        return ()

    settings = replace(Settings.of(job(mode="Asynchronous")), repack_plan=plan)
    partials = Partials()
    lease = Lease("a", 1)
    partials.open(KEY, lease, 1)
    partials.accept(KEY, lease, 0, tuple(range(20)), (0.0,) * 20, 1, finished=False)
    tokens = {KEY: 90, OTHER: 0}
    monitor = RepackMonitor(
        settings,
        SimpleNamespace(engine_speed=lambda: "speed", kv_tokens=lambda name: 1_000),
        partials,
        SimpleNamespace(prompt=lambda key: SimpleNamespace(token_ids=range(10))),
        SimpleNamespace(),
        SimpleNamespace(tokens=tokens.get),
    )
    monitor.record_end(Response(KEY, 1, 1, [0] * 20, [0.0] * 20, FinishReason.STOP, "a"))
    busy = {"a": BusyReplica(1, [Launch(key, lease) for key in tokens], moving=False)}
    monitor.plan(busy)
    tokens[KEY] = 120
    monitor.plan(busy)
    (first,), (then,) = (loads for loads, _ in seen)
    assert isinstance(first, ReplicaLoad)
    assert (first.tokens, first.kv_before) == (90 + 10, None)
    assert (then.tokens, then.kv_before, then.generated) == (120 + 10, 100, 30)
    unfinished = seen[0][1].unfinished["a"]
    assert [(one.prompt_tokens, one.generated) for one in unfinished] == [(10, 80), (10, 0)]
    assert seen[0][1].lengths.curve.longest == 80, "the one that has ended, and the same running"


def test_the_source_has_stopped_before_the_destination_begins() -> None:
    """Else its engine holds a turn when it is to load newer weights."""
    done: list[Any] = []
    flight = GroupTracker(group_size=2)
    flight.add(KEY.prompt, 1, "a")
    flight.launch({"a": 1})

    async def abort(launches: Any) -> None:
        done.append(("stopped", [one.lease for one in launches]))

    async def launch(launches: Any) -> None:
        done.append(("launched", [one.lease for one in launches]))

    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher._has_episodes = True
    dispatcher._flight = flight
    dispatcher._pool = SimpleNamespace(abort=abort)
    dispatcher._stats = GenerationStats()
    dispatcher._timeline = SimpleNamespace(event=lambda *of: done.append(of[1]))
    dispatcher.launch = launch
    asyncio.run(dispatcher.migrate(Merge("a", "b")))
    assert done == [
        "2 responses move from a to b",
        ("stopped", [Lease("a", 1)] * 2),
        ("launched", [Lease("b", 2)] * 2),
    ]
    assert (dispatcher._stats.repacks, dispatcher._stats.moved_responses) == (1, 2)
