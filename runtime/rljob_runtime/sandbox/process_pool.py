"""Process pool: a fixed number of processes that serve one call at a time.

Each is started on first demand, and again after it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

LINE_BYTES = 1 << 20
"""Longest line that is read from a process."""
EXIT_SECONDS = 5.0
"""Time for a process to end by itself after its input is closed."""


class ChildProcess:
    """A child process with pipes, in its own process group: everything that it starts ends with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    @classmethod
    async def spawn(cls, *command: str, environment: Mapping[str, str]) -> Self:
        """Start the process with our stderr.

        Raises `OSError`.
        """
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, limit=LINE_BYTES, env=environment, start_new_session=True
            )
        )
        try:
            # asyncio ends a process whose start is cancelled without what it started, and waits for all its pipes.
            return cls(await asyncio.shield(starting))
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await cls(await starting).kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def exit_code(self) -> int:
        """Wait for the end and return the exit code, or minus the signal."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End the process and everything that it started.

        Its input is closed first. It then ends by itself and reaps its children, which would otherwise stay as zombies.
        A process that does not end is killed after `EXIT_SECONDS`.
        """
        self.stdin.close()
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


class PooledProcess(Protocol):
    """A member of a pool: a process, or a connection to a remote one."""

    @property
    def alive(self) -> bool:
        """Whether it can take another call."""
        ...

    async def kill(self) -> None:
        """End it within seconds."""
        ...


C = TypeVar("C", bound=PooledProcess)


class ProcessPool(Generic[C]):
    """Up to `size` processes made by `start`.

    An error of `start` goes to the call that needed the process.
    """

    def __init__(self, size: int, start: Callable[[], Awaitable[C]]) -> None:
        if size < 1:
            raise ValueError(f"a process pool needs at least one process, not {size}")
        self._start = start
        # The last used process comes first, so a process is added only when all are busy.
        self._free: asyncio.LifoQueue[C | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._free.put_nowait(None)
        self._processes: set[C] = set()
        self.started = 0
        """Processes started so far."""

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[C]:
        """Wait for a process and use it for one call.

        After a cancelled call, which the process would continue, and after its own end, the next call gets another
        process.
        """
        process = await self._free.get()
        try:
            if process is None:
                process = await self._start()
                self._processes.add(process)
                self.started += 1
            try:
                yield process
            except asyncio.CancelledError:
                await self._end(process)
                raise
        finally:
            if process is not None and not (process.alive and process in self._processes):
                await self._end(process)
                process = None
            self._free.put_nowait(process)

    def running(self) -> frozenset[C]:
        """Return the processes that are alive."""
        return frozenset(process for process in self._processes if process.alive)

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(self._end(process) for process in list(self._processes)))

    async def _end(self, process: C) -> None:
        self._processes.discard(process)
        await process.kill()
