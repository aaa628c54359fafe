"""Scripted coordinator: `Turns` and `Environments` that answer as a test says, for tests of the link."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnBounds, TurnCall
from tests.support.gateway.stand_in_coordinator import attempt_of

EPISODE = attempt_of()


def turn_call(index: int = 0, body: bytes = b"{}", tokens: Sequence[int] = (1, 2, 3)) -> TurnCall:
    return TurnCall(attempt_of(index), f"digest {index}", False, tokens, TurnBounds(8, ("stop",), (5,)), body, 100.0)


def recorded(node: int, tokens: Sequence[int] = (7, 8), replayed: bool = False) -> RecordedTurn:
    logprobs = array("f", [-0.1 * (1 + place) for place in range(len(tokens))])
    return RecordedTurn(node, array("i", tokens), logprobs, 3, FinishReason.STOP, 12.5, False, replayed)


def assignment(index: int = 0) -> Assignment:
    record = {"question": "3 + 4", "answer": 7, "shares": [0.5, None, True]}
    return Assignment(attempt_of(index), "calc", record, ({"role": "user", "content": "3 + 4"},), 60.0)


@dataclass
class ScriptedCoordinator:
    """Answers a call when `open` is set, or raises `error`. A turn's node is the index of its prompt."""

    error: BaseException | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    turns: list[TurnCall] = field(default_factory=list)
    finished: int = 0
    """Calls that came to their end."""
    ended: int = 0
    """Calls that were cancelled."""
    under_way: int = 0
    most: int = 0
    """Largest number of calls under way."""
    stored: list[StoredTurn] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    calls: list[tuple[str, EpisodeAttempt, ToolCall]] = field(default_factory=list)
    reports: list[tuple[str, EpisodeAttempt, EpisodeReport]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open.set()

    async def turn(self, call: TurnCall) -> RecordedTurn:
        self.turns.append(call)
        await self._work()
        return recorded(call.episode.key.prompt.index)

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        await self._work()
        return self.stored[-1:] if newest else self.stored

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        await self._work()
        found, self.assignments = self.assignments[:most], self.assignments[most:]
        return found

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        await self._work()
        return [episode for episode in episodes if episode.attempt > 1]

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        await self._work()
        self.calls.append((runner, episode, call))

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        await self._work()
        self.reports.append((runner, episode, report))

    async def _work(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
            self.finished += 1
        except asyncio.CancelledError:
            self.ended += 1
            raise
        finally:
            self.under_way -= 1
