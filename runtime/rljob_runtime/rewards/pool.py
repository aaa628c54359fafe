"""The rewards of a job: functions in worker processes, programs in a sandbox, judges behind a URL, and their sum.

Each call is bounded in time; every failure of ours aborts the sample and is never a score.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from rljob_runtime.coordinator.protocols import RewardFailed
from rljob_runtime.rewards.code import CodeScorer
from rljob_runtime.rewards.failure import Failure, ScoreFailed
from rljob_runtime.rewards.functions import FunctionScorer
from rljob_runtime.rewards.judge import JudgeScorer
from rljob_runtime.rewards.rules import AnyRule, CodeRule, JudgeRule, Rule
from rljob_runtime.scheduling.reward_timeout import TimeoutFigures


@dataclass
class RewardCounters:
    """Totals since the start. `failed` by reason, `failed_by_rule` by name."""

    scored: int = 0
    failed: Counter[Failure] = field(default_factory=Counter)
    failed_by_rule: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Spent in calls, waiting for a turn included, over all samples."""


class Scorer(Protocol):
    """A part of the sum. Entering its context raises `InvalidReward`."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def score(self, prompt: Any, response: str) -> float:
        """Weighted. Raises `ScoreFailed`."""
        ...


class RewardPool:
    """Implements `rljob_runtime.coordinator.protocols.Rewards`. Use as an asynchronous context manager.

    Starting raises `InvalidReward` when a rule cannot be used; of it `CannotSandbox` where nothing can keep a program
    in. `workers` functions run at a time; programs and judges have bounds of their own.
    """

    def __init__(self, rules: Sequence[AnyRule], *, workers: int = 2):
        if not rules or workers < 1:
            raise ValueError("a reward pool needs at least one rule and one worker")
        self.rules = tuple(rules)
        self.counters = RewardCounters()
        functions = [rule for rule in rules if isinstance(rule, Rule)]
        self._functions = FunctionScorer(functions, workers=workers) if functions else None
        self._codes = {rule.name: CodeScorer(rule) for rule in rules if isinstance(rule, CodeRule)}
        judges = [JudgeScorer(rule) for rule in rules if isinstance(rule, JudgeRule)]
        # Cheap ones first: what fails early spares the rest.
        self._scorers: tuple[Scorer, ...] = (
            *([self._functions] if self._functions else []),
            *self._codes.values(),
            *judges,
        )
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start what the rules need."""
        async with AsyncExitStack() as opened:
            for scorer in self._scorers:
                await opened.enter_async_context(scorer)
            self._closing = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was started."""
        await self._closing.aclose()

    async def score(self, prompt: Any, response_text: str) -> float:
        """The weighted sum over all rules: a finite number. Raises `RewardFailed` naming the rule and the reason."""
        began = asyncio.get_running_loop().time()
        try:
            total = await self._sum(prompt, response_text)
        except ScoreFailed as failed:
            self.counters.failed[failed.failure] += 1
            self.counters.failed_by_rule[failed.rule] += 1
            raise RewardFailed(f"reward {failed.rule} ({failed.failure}): {failed}") from failed
        finally:
            self.counters.seconds += asyncio.get_running_loop().time() - began
        self.counters.scored += 1
        return total

    async def _sum(self, prompt: Any, response: str) -> float:
        total = 0.0
        for scorer in self._scorers:
            total += await scorer.score(prompt, response)
        if not math.isfinite(total):
            raise ScoreFailed(Failure.NOT_FINITE, "*", f"the weighted sum is {total}")
        return total

    @property
    def workers_started(self) -> int:
        """Worker processes since the start."""
        return self._functions.workers_started if self._functions else 0

    @property
    def timeouts(self) -> dict[str, TimeoutFigures]:
        """What became of adaptive timeouts, by the name of the Code rule."""
        return {name: scorer.timeout.figures for name, scorer in self._codes.items()}

    def anchors(self) -> dict[str, dict[str, int]]:
        """The anchors of the adaptive timeouts as JSON can hold them: by rule and test, in milliseconds. They belong
        into the round's row of the store."""
        return {name: scorer.timeout.to_plain() for name, scorer in self._codes.items()}

    def restore_anchors(self, plain: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up what `anchors` gave; a rule that is not there any more is passed over. Raises ValueError for what it
        cannot have given."""
        for name, anchors in plain.items():
            if name in self._codes:
                self._codes[name].timeout.restore(anchors)
