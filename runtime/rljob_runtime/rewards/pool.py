"""Reward pool: runs a job's functions in workers, programs in a sandbox and judges behind a URL, and adds their scores.

Each call has a time bound. Every failure of the system aborts the sample and is never a score.
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
from rljob_runtime.protocols.rewards import Anchors, Reward, terms_of
from rljob_runtime.rewards.code_scorer import CodeScorer
from rljob_runtime.rewards.environment_terms import environment_terms
from rljob_runtime.rewards.errors import BY_RESPONSE, Failure, ScoreFailed
from rljob_runtime.rewards.function_scorer import FunctionScorer
from rljob_runtime.rewards.remote_client import RemoteFunctionScorer, RemoteSandbox, RewardServerClient
from rljob_runtime.rewards.rules import AnyRule, CodeRule, EnvironmentRule, JudgeRule, Rule, scores
from rljob_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)


class Scorer(Protocol):
    """One term of the sum.

    Entering its context raises `InvalidReward` and `RewardsNotReady`.
    """

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def score(self, prompt: Any, response: str) -> Reward:
        """Return the weighted sum of its rules, and their values.

        Raises `ScoreFailed`.
        """
        ...


def _functions(
    rules: Sequence[Rule], workers: int | None, reward_server: RewardServerClient | None
) -> FunctionScorer | RemoteFunctionScorer:
    workers = workers or max(rule.parallelism for rule in rules)
    if reward_server is None:
        return FunctionScorer(rules, workers=workers)
    return RemoteFunctionScorer(reward_server, rules, workers=workers)


def _code(rule: CodeRule, reward_server: RewardServerClient | None) -> CodeScorer:
    processes = rule.settings.parallelism
    return CodeScorer(rule, Sandbox(processes) if reward_server is None else RemoteSandbox(reward_server, processes))


def _judge(rule: JudgeRule) -> Scorer:
    # Each worker of a function imports this package, and would wait 0.1 s for the HTTP client of judges.
    from rljob_runtime.rewards.judge_scorer import JudgeScorer

    return JudgeScorer(rule)


class RewardPool:
    """Implements `rljob_runtime.protocols.Rewards`.

    Use it as an asynchronous context manager. Starting raises `InvalidReward` when a rule cannot be used, its subclass
    `CannotSandbox` where nothing can confine a program or a worker, and `RewardsNotReady` when a later try may succeed.

    The largest `parallelism` of the function rules (or `workers`) bounds the concurrent calls of user functions. It
    also bounds the confined workers of built-in functions. Programs and judges have their own bounds. Functions and
    programs run in child processes, or in the container behind `reward_server`.
    """

    def __init__(
        self, rules: Sequence[AnyRule], *, workers: int | None = None, reward_server: RewardServerClient | None = None
    ):
        if not rules:
            raise ValueError("a reward pool needs at least one rule")
        self.rules = tuple(rules)
        self._scored, self._seconds = 0, 0.0
        self._failed: Counter[tuple[str, str]] = Counter()
        functions = [rule for rule in rules if isinstance(rule, Rule)]
        sorts = [[rule for rule in functions if rule.confined is confined] for confined in (True, False)]
        by_worker = [sort for sort in sorts if sort]
        codes = [rule for rule in rules if isinstance(rule, CodeRule)]
        judges = [rule for rule in rules if isinstance(rule, JudgeRule)]
        self._functions = [_functions(sort, workers, reward_server) for sort in by_worker]
        self._of_environments = [rule for rule in rules if isinstance(rule, EnvironmentRule)]
        self._codes = {rule.name: _code(rule, reward_server) for rule in codes}
        # Cheap scorers run first: an early failure saves the rest.
        self._scorers: tuple[tuple[Scorer, Sequence[AnyRule]], ...] = (
            *zip(self._functions, by_worker, strict=True),
            *((self._codes[rule.name], [rule]) for rule in codes),
            *((_judge(rule), [rule]) for rule in judges),
        )
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the scorers."""
        async with AsyncExitStack() as opened:
            for scorer, _ in self._scorers:
                await opened.enter_async_context(scorer)
            self._closing = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the scorers."""
        await self._closing.aclose()

    async def score(self, prompt: Any, response_text: str, environment_reward: float | None = None) -> Reward:
        """Return the weighted sum over the rules of the prompt's source, a finite number, with the value of each.

        `environment_reward`: that of the episode, for rules of kind Environment; None if there is none. Raises
        `RewardFailed`, which names the rule and the reason.
        """
        began = asyncio.get_running_loop().time()
        try:
            total = await self._sum(prompt, response_text, environment_reward)
        except ScoreFailed as failed:
            self._failed[failed.rule, failed.failure.value] += 1
            message = f"reward {failed.rule} ({failed.failure}): {failed}"
            raise RewardFailed(message, by_response=failed.failure in BY_RESPONSE) from failed
        finally:
            self._seconds += asyncio.get_running_loop().time() - began
        self._scored += 1
        return total

    async def _sum(self, prompt: Any, response: str, environment_reward: float | None) -> Reward:
        terms = {rule.name: 0.0 for rule in self.rules if scores(rule, prompt)}
        given = environment_terms(self._of_environments, prompt, environment_reward)
        total = float(given)
        terms.update(given.terms)
        for scorer, rules in self._scorers:
            if not any(scores(rule, prompt) for rule in rules):
                continue
            try:
                part = await scorer.score(prompt, response)
            except ScoreFailed:
                raise
            except Exception as error:
                # For example, the machine has no process left. A sample without an answer would block the round.
                log.exception("a reward failed unexpectedly")
                raise ScoreFailed(Failure.CRASHED, "*", repr(error)) from error
            total += part
            terms.update(terms_of(part))
        if not math.isfinite(total):
            raise ScoreFailed(Failure.NOT_FINITE, "*", f"the weighted sum is {total}")
        return Reward(total, terms)

    def figures(self) -> RewardStats:
        """Return totals since the start."""
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
            processes=processes + sum(scorer.pool.started for scorer in self._functions),
        )

    def take_anchors(self) -> Anchors:
        """See `protocols.Rewards`."""
        risen = {name: scorer.timeout.drain_raised() for name, scorer in self._codes.items()}
        return {name: tests for name, tests in risen.items() if tests}

    def restore_anchors(self, anchors: Anchors) -> None:
        """Restore the anchors of the rules that still exist.

        Raises `ValueError` for anchors that `take_anchors` cannot produce.
        """
        for name, scorer in self._codes.items():
            scorer.restore(anchors.get(name, {}))
