"""Stand-in for the coordinator's side of environments: a queue of attempts, who leased them, and what was reported."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt

REPORT_SECONDS = 240.0
"""A gateway that was killed imports transformers again before the report arrives, on processors that others use."""


@dataclass
class StandInEnvironments:
    """`Environments` in memory."""

    waiting: list[Assignment] = field(default_factory=list)
    leased: dict[EpisodeAttempt, str] = field(default_factory=dict)
    """Each leased attempt, and its runner."""
    reports: dict[EpisodeAttempt, EpisodeReport] = field(default_factory=dict)
    ended: set[EpisodeAttempt] = field(default_factory=set)
    """Attempts that ended without their runner."""
    heartbeats: list[tuple[str, tuple[EpisodeAttempt, ...]]] = field(default_factory=list)
    leases: list[tuple[str, str, float]] = field(default_factory=list)
    """Environment, runner and seconds of each call."""
    calls: list[tuple[EpisodeAttempt, ToolCall]] = field(default_factory=list)
    """Executed calls of tools, in the order of their reports."""
    faults: defaultdict[str, list[Exception]] = field(default_factory=lambda: defaultdict(list))
    """What the next calls of a method raise, before they act. A runner calls several of them on its own time."""
    done_calls: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, assignment: Assignment) -> None:
        """Let a runner lease an attempt."""
        async with self._changed:
            self.waiting.append(assignment)
            self._changed.notify_all()

    async def end(self, episode: EpisodeAttempt) -> None:
        """End an attempt without its runner."""
        async with self._changed:
            self.ended.add(episode)
            self._changed.notify_all()

    async def reported(self, episode: EpisodeAttempt) -> EpisodeReport:
        """Wait for the report of an attempt."""
        async with asyncio.timeout(REPORT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: episode in self.reports)
            return self.reports[episode]

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        self.leases.append((environment, runner, wait_seconds))
        self._fail("lease")
        try:
            async with asyncio.timeout(wait_seconds), self._changed:
                await self._changed.wait_for(lambda: self._next(environment))
        except TimeoutError:
            return ()
        found = self._next(environment)[:most]
        for one in found:
            self.waiting.remove(one)
            self.leased[one.episode] = runner
        return found

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        self.heartbeats.append((runner, tuple(episodes)))
        self._fail("heartbeat")
        return [one for one in episodes if one in self.ended or self.leased.get(one) != runner]

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        self._fail("called")
        if episode in self.ended or self.leased.get(episode) != runner:
            raise AttemptEnded(f"{episode} is not open for {runner}")
        self.calls.append((episode, call))

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        self.done_calls += 1
        self._fail("done")
        if episode in self.ended or self.leased.get(episode) != runner:
            raise AttemptEnded(f"{episode} is not open for {runner}")
        async with self._changed:
            if self.reports.setdefault(episode, report) != report:
                raise AttemptEnded(f"{episode} was reported otherwise")
            self._changed.notify_all()

    def _next(self, environment: str) -> list[Assignment]:
        return [one for one in self.waiting if one.environment == environment]

    def _fail(self, method: str) -> None:
        if self.faults[method]:
            raise self.faults[method].pop(0)
