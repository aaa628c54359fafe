"""Processes that are used by one call at a time: a fixed number of seats, each filled when it is first needed and again
when its process has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

LINE_BYTES = 1 << 20
"""Longest line that is read from a process."""
LETTING_GO_SECONDS = 5.0
"""For a process to end by itself when its input is closed."""


class ChildProcess:
    """A process that is spoken to over its pipes, in a group of its own: what it starts ends with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    @classmethod
    async def spawn(cls, *command: str, environment: Mapping[str, str]) -> Self:
        """Start it; stderr is ours. Raises `OSError`."""
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, limit=LINE_BYTES, env=environment, start_new_session=True
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def exit_code(self) -> int:
        """Once it has ended: minus the signal, if one ended it. Waits."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End it and what it started. It is let go first: it then ends by itself and reaps what runs under it, which
        killed without it would stay as zombies. One that does not is killed a moment later."""
        self.stdin.close()
        try:
            async with asyncio.timeout(LETTING_GO_SECONDS):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


class Seated(Protocol):
    """What sits on a seat: a process, or the way to one elsewhere."""

    @property
    def alive(self) -> bool:
        """Whether it can take another call."""
        ...

    async def kill(self) -> None:
        """End it, within a moment."""
        ...


C = TypeVar("C", bound=Seated)


class Seats(Generic[C]):
    """`size` seats for what `start` makes; whatever `start` raises goes to the call that needed one."""

    def __init__(self, size: int, start: Callable[[], Awaitable[C]]) -> None:
        if size < 1:
            raise ValueError(f"at least one seat is needed, not {size}")
        self._start = start
        # The last one used first: a process more is started only when all are busy.
        self._free: asyncio.LifoQueue[C | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._free.put_nowait(None)
        self._filled: set[C] = set()
        self.started = 0
        """Processes so far."""

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[C]:
        """A process for one call, waiting for a turn. After a cancelled call, which it would still be working on, and
        after its own end, the next call gets another."""
        process = await self._free.get()
        try:
            if process is None:
                process = await self._start()
                self._filled.add(process)
                self.started += 1
            try:
                yield process
            except asyncio.CancelledError:
                await self._end(process)
                raise
        finally:
            if process is not None and not (process.alive and process in self._filled):
                await self._end(process)
                process = None
            self._free.put_nowait(process)

    def filled(self) -> frozenset[C]:
        """Those that can take a call or are at one."""
        return frozenset(process for process in self._filled if process.alive)

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(self._end(process) for process in list(self._filled)))

    async def _end(self, process: C) -> None:
        self._filled.discard(process)
        await process.kill()
