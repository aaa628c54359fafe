"""The rewards of a job: functions in worker processes, programs in a sandbox, judges behind a URL, and their sum.

Each call is bounded in time; every failure of ours aborts the sample and is never a score.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self

from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.rewards.code_scorer import CodeScorer
from rljob_runtime.rewards.errors import BY_RESPONSE, Failure, ScoreFailed
from rljob_runtime.rewards.function_scorer import FunctionScorer
from rljob_runtime.rewards.judge_scorer import JudgeScorer
from rljob_runtime.rewards.remote_client import Elsewhere, FunctionsElsewhere, SandboxElsewhere
from rljob_runtime.rewards.rules import AnyRule, CodeRule, JudgeRule, Rule
from rljob_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)


class Scorer(Protocol):
    """A part of the sum. Entering its context raises `InvalidReward` and `RewardsNotReady`."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def score(self, prompt: Any, response: str) -> float:
        """Weighted. Raises `ScoreFailed`."""
        ...


def _functions(
    rules: Sequence[Rule], workers: int | None, elsewhere: Elsewhere | None
) -> FunctionScorer | FunctionsElsewhere:
    workers = workers or max(rule.parallelism for rule in rules)
    if elsewhere is None:
        return FunctionScorer(rules, workers=workers)
    return FunctionsElsewhere(elsewhere, rules, workers=workers)


def _code(rule: CodeRule, elsewhere: Elsewhere | None) -> CodeScorer:
    seats = rule.settings.parallelism
    return CodeScorer(rule, Sandbox(seats) if elsewhere is None else SandboxElsewhere(elsewhere, seats))


class RewardPool:
    """Implements `rljob_runtime.protocols.Rewards`. Use as an asynchronous context manager.

    Starting raises `InvalidReward` when a rule cannot be used; of it `CannotSandbox` where nothing can keep a program
    or a worker in; and `RewardsNotReady` when a later try may succeed. As many functions run at a time as the largest
    `parallelism` of their rules says (or `workers`), and as many of ours that evaluate a text, in confined workers;
    programs and judges have bounds of their own. Functions and programs run in processes of ours, or `elsewhere`.
    """

    def __init__(self, rules: Sequence[AnyRule], *, workers: int | None = None, elsewhere: Elsewhere | None = None):
        if not rules:
            raise ValueError("a reward pool needs at least one rule")
        self.rules = tuple(rules)
        self._scored, self._seconds = 0, 0.0
        self._failed: Counter[tuple[str, str]] = Counter()
        functions = [rule for rule in rules if isinstance(rule, Rule)]
        sorts = [[rule for rule in functions if rule.confined is confined] for confined in (True, False)]
        self._functions = [_functions(sort, workers, elsewhere) for sort in sorts if sort]
        self._codes = {rule.name: _code(rule, elsewhere) for rule in rules if isinstance(rule, CodeRule)}
        judges = [JudgeScorer(rule) for rule in rules if isinstance(rule, JudgeRule)]
        # Cheap ones first: what fails early spares the rest.
        self._scorers: tuple[Scorer, ...] = (
            *self._functions,
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
            self._failed[failed.rule, failed.failure.value] += 1
            message = f"reward {failed.rule} ({failed.failure}): {failed}"
            raise RewardFailed(message, by_response=failed.failure in BY_RESPONSE) from failed
        finally:
            self._seconds += asyncio.get_running_loop().time() - began
        self._scored += 1
        return total

    async def _sum(self, prompt: Any, response: str) -> float:
        total = 0.0
        for scorer in self._scorers:
            try:
                total += await scorer.score(prompt, response)
            except ScoreFailed:
                raise
            except Exception as error:
                # The machine has no process left to give, say. A sample that nobody answers for would hold the round.
                log.exception("a reward failed as none should")
                raise ScoreFailed(Failure.CRASHED, "*", repr(error)) from error
        if not math.isfinite(total):
            raise ScoreFailed(Failure.NOT_FINITE, "*", f"the weighted sum is {total}")
        return total

    def figures(self) -> RewardStats:
        """Totals since the start."""
        codes = self._codes.values()
        timeouts = [scorer.timeout.stats for scorer in codes]
        processes = sum(scorer.processes_started for scorer in codes)
        return RewardStats(
            scored=self._scored,
            seconds=self._seconds,
            failed=self._failed.copy(),
            programs=sum((scorer.ended for scorer in codes), Counter[str]()),
            program_seconds=sum(scorer.cpu_seconds for scorer in codes),
            timeouts=sum(each.overruns for each in timeouts),
            shadow_timeouts=sum(each.shadow_overruns for each in timeouts),
            late=sum(each.late for each in timeouts),
            processes=processes + sum(scorer.seats.started for scorer in self._functions),
        )

    def take_anchors(self) -> Anchors:
        """See `protocols.Rewards`."""
        risen = {name: scorer.timeout.drain_raised() for name, scorer in self._codes.items()}
        return {name: tests for name, tests in risen.items() if tests}

    def restore_anchors(self, anchors: Anchors) -> None:
        """A rule that is not there any more is passed over. Raises ValueError for what `take_anchors` cannot have
        given."""
        for name, scorer in self._codes.items():
            scorer.restore(anchors.get(name, {}))
