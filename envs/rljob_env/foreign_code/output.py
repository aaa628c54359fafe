"""Output: what a program prints, of which the begin and the end are kept, and the number of the bytes between.

A program may print without end, so its output goes through a pipe and into no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

HEAD_BYTES, TAIL_BYTES = 300, 600
"""What is kept. The coordinator stores a thousand characters of a report's detail."""
END_SECONDS = 1.0
"""Time for the last bytes of a program that has ended. One that left its session may hold the pipe open."""


class Output(asyncio.Protocol):
    """The kept output of one program."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._most_head, self._most_tail = head, tail
        self._head, self._tail = b"", b""
        self.dropped = 0
        """Bytes that are not kept."""
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Take what the program printed next."""
        room = self._most_head - len(self._head)
        self._head += data[:room]
        tail = self._tail + data[room:] if room else self._tail + data
        left = max(0, len(tail) - self._most_tail)
        self.dropped += left
        self._tail = tail[left:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nothing more comes."""
        self.ended.set()

    def text(self) -> str:
        """Return what is kept, and how much is not."""
        between = f"\n… {self.dropped} bytes left out …\n".encode() if self.dropped else b""
        return (self._head + between + self._tail).decode("utf-8", "replace").strip()


@contextlib.asynccontextmanager
async def piped(output: Output) -> AsyncIterator[int]:
    """Yield a descriptor whose bytes `output` takes, until the context ends and no other process writes."""
    reading, writing = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, os.fdopen(reading, "rb", 0))
    try:
        yield writing
    finally:
        os.close(writing)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await output.ended.wait()
        finally:
            transport.close()
