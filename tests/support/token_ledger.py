"""Token ledger: what each attempt of a response made in a simulated run, and from where the next one went on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest

from rljob_runtime.protocols import ReplicaReport
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.simulator.core.events import Aborted, Event, Generated, Submitted
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica

LATE_SECONDS = 0.2


def delay_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the answers of polls that wait: what an abort leaves in an outbox comes with a further poll only."""
    poll = SimulatedReplica.poll

    async def late(self: SimulatedReplica, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report = await poll(self, term, after, wait_seconds)
        await asyncio.sleep(LATE_SECONDS if wait_seconds else 0.0)
        return report

    monkeypatch.setattr(SimulatedReplica, "poll", late)


class TokenLedger:
    """An observer of a run without faults."""

    def __init__(self) -> None:
        self.made: defaultdict[TrajectoryKey, dict[int, int]] = defaultdict(dict)
        self.prefixes: defaultdict[TrajectoryKey, dict[int, int]] = defaultdict(dict)

    def __call__(self, event: Event) -> None:
        match event:
            case Submitted(_, key, attempt, _, prefix):
                self.prefixes[key][attempt] = prefix
            case Aborted(_, key, attempt, tokens) | Generated(_, key, attempt, _, tokens):
                self.made[key][attempt] = tokens

    @property
    def lost(self) -> dict[str, tuple[int, int]]:
        """Responses that went on from another number of tokens than their attempt before had made."""
        found = {}
        for key, prefixes in self.prefixes.items():
            for before, after in pairwise(sorted(prefixes)):
                made = self.made[key].get(before, prefixes[after])
                if made != prefixes[after]:
                    found[str(key)] = made, prefixes[after]
        return found

    @property
    def moved(self) -> int:
        """Number of launches that continue a response."""
        return sum(len(prefixes) - 1 for prefixes in self.prefixes.values())

    @property
    def total(self) -> int:
        """Tokens that all engines made."""
        launched = ((key, attempt, prefix) for key, its in self.prefixes.items() for attempt, prefix in its.items())
        return sum(self.made[key][attempt] - prefix for key, attempt, prefix in launched)
