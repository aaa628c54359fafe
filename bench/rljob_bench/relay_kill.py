"""`rljob bench relay --kill`: a relay dies in the middle of a broadcast, at each place of the chain in turn.

What is measured is the relays' part: how soon the predecessor notices (where the process dies and its machine lives),
and how long after the order to close the chain the successor receives again. Before that order come the coordinator's
two heartbeats, where a machine has no power. Relays run in network namespaces around one switch, on links of a fixed
rate.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rljob_bench.lib import netns
from rljob_bench.lib.netns import Star
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.protocols import Chain
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.subprocess import RelayCommand, RelayProcess

Row = dict[str, Any]

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Plan:
    """A version of `nbytes` in `chunks` over `relays` of them; the victim holds a share of `moments` when it dies."""

    rate: int = 50_000_000
    nbytes: int = 12 << 20
    chunks: int = 48
    relays: int = 4
    moments: tuple[float, ...] = (0.1, 0.5, 0.9)


QUICK = Plan(nbytes=3 << 20, chunks=12, moments=(0.5,))


def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return the result as `rljob bench` prints it. Raises RuntimeError where network namespaces cannot be made."""
    reason = netns.unavailable()
    if reason is not None:
        raise RuntimeError(f"bench relay --kill: {reason}")
    plan = QUICK if quick else Plan()
    torch.manual_seed(seed)
    rows = [
        _once(plan, place, moment, power)
        for power in (False, True)
        for place in range(plan.relays)
        for moment in plan.moments
    ]
    figures = [
        figure("repair_seconds_worst", max(row["repair_seconds"] for row in rows), 1.0, unit="s", better="lower"),
        figure(
            "noticed_seconds_worst",
            max(row["noticed_seconds"] for row in rows if row["noticed_seconds"] is not None),
            1.0,
            unit="s",
            better="lower",
        ),
        figure(
            "chunks_received_twice",
            sum(row["chunks_received_twice"] for row in rows),
            0.0,
            "a broadcast begun again sends the successor all of it",
            0.0,
            unit="chunks",
            better="lower",
        ),
    ]
    settings = {"rate_bits_per_second": plan.rate, "bytes": plan.nbytes, "chunks": plan.chunks, "relays": plan.relays}
    return {"bench": "relay --kill", "seed": seed, "settings": settings, "figures": figures, "rows": rows}


def _once(plan: Plan, place: int, moment: float, power: bool) -> Row:
    """`place`: of the victim in the chain. `power`: its machine goes with it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-bench-", dir=SHARED_MEMORY)))
        star = stack.enter_context(Star(plan.relays + 1, plan.rate))
        key_file = folder / "relay-key"
        key_file.write_text(secrets.token_hex(16))
        with star.inside(plan.relays):
            settings = RelaySettings(chunk_bytes=-(-plan.nbytes // plan.chunks))
            trainer = Publisher(folder / "trainer", read_key(key_file), settings, torch.bfloat16)
        stack.enter_context(trainer)
        relays = [
            stack.enter_context(
                RelayProcess(
                    RelayCommand(f"rollout-{i}", folder / f"{i}", key_file, star.address(i), prefix=star.command(i))
                )
            )
            for i in range(plan.relays)
        ]
        chain = _chained(relays, 0)
        trainer.publish(1, {"w": torch.randint(0, 256, (plan.nbytes,), dtype=torch.uint8)})
        trainer.settle()
        trainer.ship(1, chain)
        victim = relays.pop(place)
        _until(lambda: victim.status().chunks_received >= moment * plan.chunks or victim.segment.version() == 1)
        if power:
            star.unplug(place)
        victim.kill()
        return {
            "power": power,
            "place": place,
            "moment": moment,
            **_repair(trainer, relays, place, plan.chunks, power),
        }


def _repair(trainer: Publisher, relays: list[RelayProcess], place: int, chunks: int, power: bool) -> Row:
    began = time.perf_counter()

    def link() -> str:
        return trainer.link[0] if place == 0 else relays[place - 1].status().link

    if not power:
        _until(lambda: link() != "Connected")
    noticed = time.perf_counter() - began
    before = [relay.status().chunks_received for relay in relays]
    began = time.perf_counter()
    chain = _chained(relays, 1)
    if place == 0:
        trainer.ship(1, chain)
    if place < len(relays):
        successor = relays[place]
        _until(lambda: successor.status().chunks_received > before[place] or successor.segment.version() == 1)
    repaired = time.perf_counter() - began
    _until(lambda: all(relay.segment.version() == 1 for relay in relays))
    received = [relay.status().bytes_received_total for relay in relays]
    whole = trainer.manifest.total_bytes if trainer.manifest is not None else 0
    return {
        "noticed_seconds": None if power else noticed,
        "repair_seconds": repaired,
        "whole_seconds": time.perf_counter() - began,
        "successor_had": before[place] if place < len(relays) else chunks,
        "chunks_received_twice": sum(nbytes - whole for nbytes in received) * chunks / whole,
    }


def _chained(relays: list[RelayProcess], revision: int) -> Chain:
    chain = Chain(1, revision, tuple(relay.member for relay in relays))
    for relay in relays:
        relay.join(chain)
    return chain


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"bench relay --kill: the broadcast stands still after {WAIT_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
