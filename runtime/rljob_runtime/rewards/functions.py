"""Rules that are functions, called in worker processes.

One that hangs is killed with its worker, one that crashes takes only its worker with it; the next call has a fresh one.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rljob_runtime.rewards.failure import Failure, ScoreFailed
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.rewards.worker import frame
from rljob_runtime.sandbox.seats import ChildProcess, Seats

START_SECONDS = 120.0
"""Bound of a worker's start: importing a large library on a busy machine."""


class _Worker(ChildProcess):
    """One process that has loaded the rules."""

    async def load(self, rules: Sequence[Rule], seconds: float) -> None:
        """Raises `InvalidReward`, or `ScoreFailed` when it does not come up."""
        try:
            answer = await self._ask(tuple(rules), seconds)
        except TimeoutError:
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker did not start within {seconds:g} s") from None
        if answer is None:
            code = await self.exit_code()
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker ended at start with code {code}")
        if "invalid" in answer:
            raise InvalidReward(answer["invalid"])

    async def score(self, rule: Rule, prompt: object, response: str) -> float:
        """The rule's value, unweighted. After `TimeoutError`, a cancellation or a crash the worker is of no more
        use."""
        answer = await self._ask((rule.name, prompt, response), rule.timeout_seconds)
        if answer is None:
            code = await self.exit_code()
            raise ScoreFailed(Failure.CRASHED, rule.name, f"the worker ended with code {code}")
        if "raised" in answer:
            raise ScoreFailed(Failure.RAISED, rule.name, answer["raised"])
        value = float(answer["value"])
        if not math.isfinite(value):
            raise ScoreFailed(Failure.NOT_FINITE, rule.name, f"it returned {value}; a finite number would be right")
        return value

    async def _ask(self, message: object, seconds: float) -> dict[str, Any] | None:
        """The reply, or None when the process has ended or writes nonsense, and is ended for it. Raises
        `TimeoutError`."""
        async with asyncio.timeout(seconds):
            try:
                self.stdin.write(frame(message))
                await self.stdin.drain()
                answer: dict[str, Any] = json.loads(await self.stdout.readline())
            except (ConnectionError, ValueError):  # its end is closed, or it wrote no JSON, or a line without end
                await self.kill()
                return None
        return answer


class FunctionScorer:
    """All function rules of a job together. `workers` calls run at a time, the rest waits its turn. Use as an
    asynchronous context manager; entering raises `InvalidReward` when a rule cannot be loaded."""

    def __init__(self, rules: Sequence[Rule], *, workers: int, start_seconds: float = START_SECONDS):
        self._rules = tuple(rules)
        self._start_seconds = start_seconds
        self.seats = Seats(workers, self._start)

    async def __aenter__(self) -> Self:
        """Start the first worker, which shows whether the rules can be loaded; the others start when they are
        needed."""
        try:
            async with self.seats.taken():
                return self
        except ScoreFailed as failed:
            raise InvalidReward(str(failed)) from failed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers."""
        await self.seats.close()

    async def score(self, prompt: object, response: str) -> float:
        """The weighted sum over the rules. Raises `ScoreFailed`."""
        async with self.seats.taken() as worker:
            total = 0.0
            for rule in self._rules:
                try:
                    total += rule.weight * await worker.score(rule, prompt, response)
                except TimeoutError:
                    await worker.kill()
                    detail = f"no value within {rule.timeout_seconds:g} s"
                    raise ScoreFailed(Failure.TIMED_OUT, rule.name, detail) from None
            return total

    async def _start(self) -> _Worker:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = (sys.executable, "-W", "ignore", "-m", "rljob_runtime.rewards.worker")
        worker = await _Worker.spawn(*command, environment=environment)
        try:
            await worker.load(self._rules, self._start_seconds)
        except BaseException:
            await worker.kill()
            raise
        return worker
