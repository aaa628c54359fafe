"""Function scorer: calls reward functions in worker processes.

A function that hangs is killed with its worker, and a crash ends only its worker. The next call gets a fresh worker.
Time that a worker waits for a processor does not count, so a busy machine causes no timeout.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.rewards.errors import Failure, RewardsNotReady, ScoreFailed
from rljob_runtime.rewards.function_worker import frame
from rljob_runtime.rewards.rules import CannotSandbox, InvalidReward, Rule, confined, scores
from rljob_runtime.sandbox.process_pool import ChildProcess, ProcessPool
from rljob_runtime.sandbox.program import SandboxUnavailable
from rljob_runtime.sandbox.resource_usage import STARVED_FACTOR, STARVED_SECONDS, starved, waited_seconds
from rljob_runtime.user_functions.tracebacks import code_folders

START_SECONDS = 120.0
"""Bound of a worker's start, for importing a large library on a busy machine."""
SHORTEST_WAIT_SECONDS = 0.05
"""Interval between checks of the waiting time of a late worker."""
FULL = 0.95
"""Share of its address space above which an evaluation counts as out of memory."""


class _Worker(ChildProcess):
    """One process that has loaded the rules."""

    _process_of_call: int | None = None
    """Process that evaluates the text of this call, if it is not the worker itself."""

    async def load(self, rules: Sequence[Rule], seconds: float) -> None:
        """Load the rules.

        Raises `InvalidReward`, `SandboxUnavailable`, or `ScoreFailed` when the worker does not start.
        """
        try:
            answer = await self._ask(tuple(rules), seconds)
        except TimeoutError:
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker did not start within {seconds:g} s") from None
        if answer is None:
            code = await self.exit_code()
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker ended at start with code {code}")
        if "invalid" in answer:
            raise InvalidReward(answer["invalid"])
        if "unavailable" in answer:
            raise SandboxUnavailable(answer["unavailable"])

    async def score(self, rule: Rule, prompt: object, response: str) -> float:
        """Return the rule's value without its weight.

        After `TimeoutError`, a cancellation or a crash, the worker cannot be used again.
        """
        call = secrets.token_hex(8)
        answer = await self._ask((call, rule.name, prompt, response), rule.timeout_seconds)
        if answer is None:
            code = await self.exit_code()
            raise ScoreFailed(Failure.CRASHED, rule.name, f"the worker ended with code {code}")
        if answer.get("call") != call:
            await self.kill()
            raise ScoreFailed(Failure.CRASHED, rule.name, "the worker answered what was not asked")
        if "died" in answer:
            raise ScoreFailed(Failure.CRASHED, rule.name, f"the process of this text ended {answer['died']}")
        if answer.get("memory", 0.0) > FULL:
            raise ScoreFailed(Failure.RAISED, rule.name, "the worker had no memory left; its answer counts for nothing")
        if "raised" in answer:
            raise ScoreFailed(Failure.RAISED, rule.name, answer["raised"])
        value = float(answer["value"])
        if not math.isfinite(value):
            raise ScoreFailed(Failure.NOT_FINITE, rule.name, f"it returned {value}; a finite number would be right")
        if not rule.least <= value <= rule.most:
            bounds = f"a number of its range, {rule.least:g} to {rule.most:g}, would be right"
            raise ScoreFailed(Failure.OUT_OF_RANGE, rule.name, f"it returned {value:g}; {bounds}")
        return value

    async def _ask(self, message: object, seconds: float) -> dict[str, Any] | None:
        """Send a message and return the reply.

        None when the process has ended, or has written nonsense and was ended for it. Raises `TimeoutError` after
        `seconds`, without the time that the process waited for a processor.
        """
        clock = asyncio.get_running_loop().time
        self._process_of_call = None
        began, waited = clock(), self._waited()
        exchange = asyncio.create_task(self._exchange(message))
        try:
            while (left := seconds - (clock() - began) + self._waited_for_call(waited)) > 0:
                if starved(clock() - began, seconds):
                    break
                await asyncio.wait({exchange}, timeout=max(left, SHORTEST_WAIT_SECONDS))
                if exchange.done():
                    return exchange.result()
            raise TimeoutError
        finally:
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)

    async def _exchange(self, message: object) -> dict[str, Any] | None:
        try:
            self.stdin.write(frame(message))
            await self.stdin.drain()
            answer = await self._line()
            if "process" in answer:
                self._process_of_call = answer["process"]
                answer = await self._line()
        except (ConnectionError, ValueError, RecursionError):
            # The worker has closed its end, or has written no JSON or an endless line.
            await self.kill()
            return None
        return answer

    async def _line(self) -> dict[str, Any]:
        """Return the worker's next line. Raises `ValueError` and `RecursionError` if it is no object."""
        found = json.loads(await self.stdout.readline())
        if not isinstance(found, dict):
            raise ValueError("no object")
        return found

    def _waited_for_call(self, before: float) -> float:
        """Return how long this call waited for a processor.

        A process of its own waited for nothing else.
        """
        return self._waited() - (before if self._process_of_call is None else 0.0)

    def _waited(self) -> float:
        try:
            return waited_seconds(self._process_of_call or self.pid)
        except OSError:  # it has just ended, and the exchange reports that
            return 0.0


def longest_seconds(rules: Sequence[Rule]) -> float:
    """Return the bound of a call on a busy machine: a worker's start and every rule."""
    return START_SECONDS + sum(STARVED_FACTOR * rule.timeout_seconds + STARVED_SECONDS for rule in rules)


class FunctionScorer:
    """Scorer of the function rules of a job, which share their workers.

    `workers` calls run at a time; others wait. Use it as an asynchronous context manager. Entering raises
    `InvalidReward` when a rule cannot be loaded, `CannotSandbox` when a worker cannot be confined, and
    `RewardsNotReady` when no worker starts.
    """

    def __init__(self, rules: Sequence[Rule], *, workers: int, start_seconds: float = START_SECONDS):
        self._rules = tuple(rules)
        self._start_seconds = start_seconds
        self.pool = ProcessPool(workers, self._start)

    async def __aenter__(self) -> Self:
        """Start the first worker, which shows whether the rules can be loaded.

        Others start on demand.
        """
        try:
            async with self.pool.acquire():
                return self
        except ScoreFailed as failed:
            raise RewardsNotReady(str(failed)) from failed
        except SandboxUnavailable as error:
            raise cannot_confine(self._rules, error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers."""
        await self.pool.close()

    async def score(self, prompt: object, response: str) -> Reward:
        """Return the weighted sum over the rules of the prompt's source.

        Raises `ScoreFailed`.
        """
        try:
            async with self.pool.acquire() as worker:
                return await self._sum(worker, prompt, response)
        except (InvalidReward, SandboxUnavailable) as error:  # a later worker failed where the first one succeeded
            raise ScoreFailed(Failure.NOT_STARTED, "*", str(error)) from error

    async def _sum(self, worker: _Worker, prompt: object, response: str) -> Reward:
        total, terms = 0.0, {}
        for rule in (rule for rule in self._rules if scores(rule, prompt)):
            try:
                terms[rule.name] = await worker.score(rule, prompt, response)
                total += rule.weight * terms[rule.name]
            except TimeoutError:
                await worker.kill()
                detail = f"no value within {rule.timeout_seconds:g} s"
                raise ScoreFailed(Failure.TIMED_OUT, rule.name, detail) from None
        return Reward(total, terms)

    async def _start(self) -> _Worker:
        try:
            worker = await _Worker.spawn(*_command(self._rules), environment=_environment(self._rules))
        except OSError as error:  # no process or no memory left
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker could not be started: {error}") from error
        try:
            await worker.load(self._rules, self._start_seconds)
        except BaseException:
            await worker.kill()
            raise
        return worker


def cannot_confine(rules: Sequence[Rule], error: SandboxUnavailable) -> CannotSandbox:
    """Return the error, with the names of the affected rules."""
    names = ", ".join(rule.name for rule in rules)
    return CannotSandbox(f"reward {names} needs a worker that can do nothing but compute: {error}")


def _command(rules: Sequence[Rule]) -> list[str]:
    start = [sys.executable, "-W", "ignore"]
    if not confined(rules):
        return [*start, "-m", "rljob_runtime.rewards.function_worker"]
    # -P keeps the current folder off the path: the worker must not import or read it.
    code = (
        f"import sys; sys.path[:0] = {code_folders()!r}; from rljob_runtime.rewards.function_worker import main; main()"
    )
    return [*start, "-P", "-c", code]


def _environment(rules: Sequence[Rule]) -> dict[str, str]:
    """Return the environment of a worker.

    User functions may need everything but Ray's variables. Built-in functions get no secrets, and one thread for linear
    algebra: a process with several threads cannot be confined.
    """
    if not confined(rules):
        return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
