"""Workers: processes in which foreign Python functions are called, with a time-out.

A call that takes too long ends its process and no other one. A process serves calls of any episode, one at a time, so
a function keeps nothing between calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.processes import bare_environment, process_group, python_path

MOST_LINE_BYTES = 16 << 20
START_SECONDS = 120.0
"""Longest time in which a process imports its functions."""
STARTS = max(4, os.cpu_count() or 1)
"""Processes of a pool that start at a time: an import keeps a processor busy."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker loads. `part`: the part of ours that failed if the functions do not load or a worker dies."""

    root: Path
    functions: tuple[str, ...]
    variables: Mapping[str, str]
    part: Part
    guard: Guard


@dataclass
class WorkerStats:
    """Totals of a pool."""

    started: int = 0
    timed_out: int = 0
    died: int = 0


class CallFailed(Exception):
    """A call failed, but not by a model's arguments: a tool lost its server, or a function of the owner raised."""


class CallError(Exception):
    """A function raised an exception on its arguments. The message is for who wrote them."""


class Worker:
    """A process with its functions loaded."""

    def __init__(self, process: asyncio.subprocess.Process, settings: WorkerSettings) -> None:
        self._process = process
        self._settings = settings

    async def started(self) -> None:
        """Wait until the functions are loaded. Raises `Failed` if they cannot be."""
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._read()
        except TimeoutError as error:
            raise Failed(self._settings.part, f"not loaded after {START_SECONDS:g} s") from error
        if "cannotLoad" in answer:
            raise Failed(self._settings.part, f"cannot load {answer['cannotLoad']}")

    async def call(self, what: str, function: str, **arguments: Any) -> Any:
        """Return the answer to a call. Raises `CallError`, `CallFailed`, and `Failed` if the process dies."""
        number = secrets.token_hex(8)
        line = json.dumps({"call": number, "what": what, "function": function, **arguments}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise self._died() from error
        answer = await self._read()
        if answer.get("call") != number:
            # Code that a function evaluates may write lines of its own. None of them may answer a later call.
            raise self._died()
        if "error" in answer:
            raise CallError(answer["error"])
        if "failed" in answer:
            raise CallFailed(f"{function}: {answer['failed']}")
        return answer["value"]

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            answer = json.loads(await self._process.stdout.readline())
        except (ValueError, RecursionError, ConnectionError) as error:  # An empty line is the end of a pipe.
            raise self._died() from error
        if not isinstance(answer, dict):
            raise self._died()
        return answer

    def _died(self) -> Failed:
        names = ", ".join(self._settings.functions)
        return Failed(self._settings.part, f"the process of {names} died, or wrote what is no answer")


class WorkerPool:
    """Workers of the same functions, at most as many as there are calls at a time."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.stats = WorkerStats()
        self._settings = settings
        self._idle: list[tuple[Worker, AsyncExitStack]] = []
        self._starts = asyncio.Semaphore(STARTS)

    @property
    def has_idle(self) -> bool:
        """Whether a started worker waits for a call."""
        return bool(self._idle)

    async def observe(self, function: str, arguments: Mapping[str, Any], seconds: float) -> str:
        """Return what a tool answers to a model's arguments. Raises `CallError`, `CallFailed`, `TimeoutError`."""
        return str(await self._call(seconds, "observe", function, named=dict(arguments)))

    async def evaluate(
        self, function: str, given: Sequence[Any], seconds: float, place: Mapping[str, str] | None = None
    ) -> Any:
        """Return what a function of the job's owner returns, as JSON. Raises `CallFailed`, `TimeoutError`.

        `place`: the `folder` in which it is called, and its `home`; by default those of the worker.
        """
        return await self._call(seconds, "evaluate", function, given=list(given), place=dict(place or {}))

    async def describe(self, function: str) -> dict[str, Any]:
        """Return a function as a tool. Raises `CallFailed` if it is none."""
        return dict(await self._call(START_SECONDS, "describe", function))

    async def close(self) -> None:
        """End all processes."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    async def _call(self, seconds: float, what: str, function: str, **arguments: Any) -> Any:
        async with self._one() as worker:
            try:
                async with asyncio.timeout(seconds):
                    return await worker.call(what, function, **arguments)
            except TimeoutError:
                self.stats.timed_out += 1
                raise

    @contextlib.asynccontextmanager
    async def _one(self) -> AsyncIterator[Worker]:
        """Take a worker. One that did not answer its call is ended: its answer would be read by the next."""
        worker, stack = self._idle.pop() if self._idle else await self._started_or_freed()
        answered = False
        try:
            yield worker
            answered = True
        except (CallError, CallFailed):
            answered = True
            raise
        except Failed:
            self.stats.died += 1
            raise
        finally:
            if answered:
                self._idle.append((worker, stack))
            else:
                await stack.aclose()

    async def _started_or_freed(self) -> tuple[Worker, AsyncExitStack]:
        """Start a worker, or take one that was freed while others started.

        A runner that leases many episodes makes their first calls together. As many processes would take all
        processors, and heartbeats would be late.
        """
        async with self._starts:
            return self._idle.pop() if self._idle else await self._start()

    async def _start(self) -> tuple[Worker, AsyncExitStack]:
        settings = self._settings
        async with AsyncExitStack() as stack:
            home = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-env-", ignore_cleanup_errors=True))
            )
            variables = bare_environment(home, python_path() | dict(settings.variables))
            command = [
                sys.executable,
                "-m",
                "rljob_env.foreign_code.worker_main",
                str(settings.root),
                *settings.functions,
            ]
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "limit": MOST_LINE_BYTES}
            process = await stack.enter_async_context(
                process_group(command, variables, settings.root, settings.guard, **pipes)
            )
            worker = Worker(process, settings)
            await worker.started()
            self.stats.started += 1
            return worker, stack.pop_all()
        raise AssertionError("unreachable")
