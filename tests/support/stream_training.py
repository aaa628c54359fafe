"""A trainer that a test plays for the stream, and groups for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.coordinator.stream_training.loaned_worker import tokens_of
from rljob_runtime.protocols import ContributeReport
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey

T = TypeVar("T")


class ScriptedTrainer:
    """A trainer client whose calls end as the test says."""

    published_version = 1

    def __init__(self, *outcomes: Exception | float) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[Group, ...]] = []
        self.running = 0
        self.timeline = Timeline()

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        self.calls.append(tuple(groups))
        outcome = self.outcomes.pop(0) if self.outcomes else 1.0
        if isinstance(outcome, Exception):
            raise outcome
        await asyncio.sleep(outcome)
        return ContributeReport(step, len(groups), outcome, tokens_of(groups))

    async def call(self, method: Callable[[ScriptedTrainer], Awaitable[T]]) -> T:
        self.running += 1
        assert self.running == 1, "one call at a time"
        try:
            return await method(self)
        finally:
            self.running -= 1


def some(*numbers: int, tokens: int = 1) -> list[Group]:
    """Groups of one response of so many tokens."""
    made = []
    for number in numbers:
        key = TrajectoryKey(PromptKey(0, number), 0)
        response = Response(key, 1, 1, (1,) * tokens, (-0.1,) * tokens, FinishReason.STOP, "replica-0")
        made.append(Group(key.prompt, (1,), (ScoredResponse(response, 1.0),)))
    return made
