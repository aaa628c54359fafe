"""Rules that are functions, called in worker processes.

One that hangs is killed with its worker, one that crashes takes only its worker with it; the next call has a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rljob_runtime.rewards.failure import Failure, ScoreFailed
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.rewards.worker import frame

START_SECONDS = 120.0
"""Bound of a worker's start: importing a large library on a busy machine."""
REPLY_BYTES = 1 << 20
"""Longest reply: an exception's text at worst."""


class _Worker:
    """One process, used by one call at a time."""

    def __init__(self, process: asyncio.subprocess.Process):
        self._process = process

    @classmethod
    async def start(cls, rules: Sequence[Rule], seconds: float) -> _Worker:
        """A worker that has loaded the rules. Raises `InvalidReward`, or `ScoreFailed` when it does not come up."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-m", "rljob_runtime.rewards.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=REPLY_BYTES, env=environment, start_new_session=True,
        )  # fmt: skip
        worker = cls(process)
        try:
            answer = await worker._ask(tuple(rules), seconds)
        except TimeoutError:
            await worker.kill()
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker did not start within {seconds:g} s") from None
        except BaseException:
            await worker.kill()
            raise
        if answer is None:
            await worker.kill()
            raise ScoreFailed(Failure.NOT_STARTED, "*", f"a worker ended at start with code {process.returncode}")
        if "invalid" in answer:
            await worker.kill()
            raise InvalidReward(answer["invalid"])
        return worker

    async def score(self, rule: Rule, prompt: object, response: str) -> float:
        """The rule's value, unweighted. After `TimeoutError`, a cancellation or a crash the worker is of no more
        use."""
        answer = await self._ask((rule.name, prompt, response), rule.timeout_seconds)
        if answer is None:
            code = await self._process.wait()
            raise ScoreFailed(Failure.CRASHED, rule.name, f"the worker ended with code {code}")
        if "raised" in answer:
            raise ScoreFailed(Failure.RAISED, rule.name, answer["raised"])
        value = float(answer["value"])
        if not math.isfinite(value):
            raise ScoreFailed(Failure.NOT_FINITE, rule.name, f"it returned {value}; a finite number would be right")
        return value

    async def _ask(self, message: object, seconds: float) -> dict[str, Any] | None:
        """The reply, or None when the process has ended. Raises `TimeoutError`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        async with asyncio.timeout(seconds):
            try:
                stdin.write(frame(message))
                await stdin.drain()
                line = await stdout.readline()
            except (ConnectionError, ValueError):  # its end is closed, or it wrote a line without end
                return None
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            return None
        return answer

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def kill(self) -> None:
        """End it and what it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class FunctionScorer:
    """All function rules of a job together. `workers` calls run at a time, the rest waits its turn. Use as an
    asynchronous context manager; entering raises `InvalidReward` when a rule cannot be loaded."""

    def __init__(self, rules: Sequence[Rule], *, workers: int, start_seconds: float = START_SECONDS):
        self._rules = tuple(rules)
        self._start_seconds = start_seconds
        self._seats: asyncio.Queue[_Worker | None] = asyncio.Queue()
        self._size = workers
        self._all: set[_Worker] = set()
        self.workers_started = 0

    async def __aenter__(self) -> Self:
        """Start the first worker, which shows whether the rules can be loaded; the others start when they are
        needed."""
        try:
            self._seats.put_nowait(await self._start())
        except ScoreFailed as failed:
            raise InvalidReward(str(failed)) from failed
        for _ in range(self._size - 1):
            self._seats.put_nowait(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers."""
        for worker in list(self._all):
            await self._dismiss(worker)

    async def score(self, prompt: object, response: str) -> float:
        """The weighted sum over the rules. Raises `ScoreFailed`."""
        seat = await self._seats.get()
        try:
            if seat is None:
                seat = await self._start()
            return await self._sum(seat, prompt, response)
        except asyncio.CancelledError:  # the worker still works on it
            if seat is not None:
                await self._dismiss(seat)
            raise
        finally:
            if seat is not None and not (seat.alive and seat in self._all):
                await self._dismiss(seat)
                seat = None
            self._seats.put_nowait(seat)

    async def _sum(self, worker: _Worker, prompt: object, response: str) -> float:
        total = 0.0
        for rule in self._rules:
            try:
                total += rule.weight * await worker.score(rule, prompt, response)
            except TimeoutError:
                await self._dismiss(worker)
                detail = f"no value within {rule.timeout_seconds:g} s"
                raise ScoreFailed(Failure.TIMED_OUT, rule.name, detail) from None
        return total

    async def _start(self) -> _Worker:
        worker = await _Worker.start(self._rules, self._start_seconds)
        self._all.add(worker)
        self.workers_started += 1
        return worker

    async def _dismiss(self, worker: _Worker) -> None:
        self._all.discard(worker)
        await worker.kill()
