"""Kept process: a child that is started again when it dies: a gateway, or a runner of `rljob run`.

It has a process group of its own, so that nothing that it started outlives it, and Ctrl-C reaches it by this process
alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from rljob_runtime.scheduling.fault_detection.process_restarts import ProcessRestarts

log = logging.getLogger(__name__)

REFUSED = 2
"""Exit status of a process that is told what it cannot do: another start gives the same."""
SHOWN = 300
"""Characters shown of a log's last line."""


class ProcessFailed(Exception):
    """A process cannot work, or died too often. The message has its last words. `refused`: another start is no use."""

    def __init__(self, why: str, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


@dataclass(frozen=True)
class Command:
    """A process: its name in messages, its command, the file that takes its output, and its environment.

    Without a file its output is that of this process."""

    name: str
    line: Sequence[str]
    log: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    end_seconds: float = 15.0
    """Time in which it ends after SIGTERM; then its group is killed."""


class KeptProcess:
    """One process that is kept alive. `on_restart` receives why a further one is started."""

    def __init__(
        self,
        command: Command,
        on_restart: Callable[[str], None] = lambda why: None,
        restarts: ProcessRestarts | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restarts = restarts or ProcessRestarts()
        self.pid: int | None = None
        """Of the process that runs; None between two."""
        self._command = command
        self._on_restart = on_restart
        self._sleep = sleep
        self._clock = clock

    async def run(self) -> NoReturn:
        """Keep it alive until cancelled, and end it then. Raises `ProcessFailed`."""
        command = self._command
        while True:
            began, size = self._clock(), _size(command.log)
            status = await self._live()
            why = f"{command.name} ended with {_ending(status)}; {last_words(command.log, size)}"
            refused = status == REFUSED
            delay = None if refused else self.restarts.delay(self._clock() - began)
            if delay is None:
                raise ProcessFailed(why, refused)
            log.warning("%s; it is started again in %g s", why, delay)
            self._on_restart(why)
            await self._sleep(delay)

    async def _live(self) -> int:
        """Start the process, and return its exit status. Raises `ProcessFailed` if it cannot be started."""
        command = self._command
        try:
            with _output(command.log) as output:
                process = await asyncio.create_subprocess_exec(
                    *command.line,
                    env=dict(command.environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessFailed(f"{command.name} cannot be started: {error}") from error
        self.pid = process.pid
        try:
            return await process.wait()
        finally:
            self.pid = None
            await asyncio.shield(_end(process, command))


async def _end(process: asyncio.subprocess.Process, command: Command) -> None:
    """End a process and everything of its group."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(command.end_seconds):
                await process.wait()
        except TimeoutError:
            log.warning("%s did not end within %g s; it is killed", command.name, command.end_seconds)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    await process.wait()


def _output(path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    return nullcontext() if path is None else path.open("ab")


def last_words(path: Path | None, begin: int = 0) -> str:
    """Return the last line of a log after its first `begin` bytes, with the log's place."""
    if path is None:
        return "its last lines say why"
    with path.open("rb") as file:
        file.seek(max(begin, _size(path) - 16 * SHOWN))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f"{path} ends with: {lines[-1][:SHOWN]}" if lines else f"its log is {path}"


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def _ending(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"
