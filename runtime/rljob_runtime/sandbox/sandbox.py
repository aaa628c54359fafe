"""Programs that nobody trusts, run a few at a time: `async with Sandbox() as sandbox: await sandbox.run(program)`.

One supervisor a seat. Opening tries the sandbox out on a program of ours that looks for the ways out, so that a machine
where the layers do not do what they promise is found before a model's code runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rljob_runtime
from rljob_runtime.sandbox.folders import remove
from rljob_runtime.sandbox.frames import LENGTH_BYTES, encode
from rljob_runtime.sandbox.program import End, Layer, Program, Run, SandboxFailed, SandboxUnavailable

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Bound of a supervisor's start."""
SLACK_SECONDS = 300.0
"""A supervisor ends a program in time, or says why not; this is for one that hangs itself."""
ALL_LAYERS = frozenset(Layer)

_WAYS_OUT = """
import os, socket, time
found = []
def attempt(what, call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return
    found.append(what)
attempt("read a file outside its folder", open, CANARY)
attempt("write outside its folder", open, CANARY + ".new", "w")
attempt("open a socket", socket.socket)
attempt("start a process", os.fork)
attempt("signal another process", os.kill, os.getppid(), 0)
open("own", "w").write("it may write here")
time.sleep(0.1)  # long enough to be looked at
print("ways out:", ", ".join(found))
"""


class _Supervisor:
    """One supervisor process, used by one call at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, scratch: str, layers: Iterable[Layer]) -> tuple[_Supervisor, frozenset[Layer]]:
        """It, and the layers that work. Raises `SandboxUnavailable`, or `SandboxFailed` when it does not come up."""
        # -S and the like keep this environment's start-up files out: a supervisor needs the standard library and us.
        home = str(Path(rljob_runtime.__file__).parents[1])
        code = f"import sys; sys.path[:0] = [{home!r}]; from rljob_runtime.sandbox.supervisor import main; main()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-s", "-S", "-P", "-c", code, scratch, json.dumps(sorted(layers)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=_environment(), start_new_session=True,
        )  # fmt: skip
        supervisor = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await supervisor._receive()
        except BaseException as error:
            await supervisor.kill()
            if isinstance(error, TimeoutError):
                raise SandboxFailed(f"a sandbox did not start within {START_SECONDS:g} s") from None
            raise
        if "unavailable" in answer:
            await supervisor.kill()
            raise SandboxUnavailable(answer["unavailable"])
        return supervisor, frozenset(map(Layer, answer["layers"]))

    async def run(self, program: Program) -> Run:
        """Raises `SandboxFailed`; after that, or a cancellation, `alive` tells whether it is of further use."""
        assert self._process.stdin is not None
        try:
            # Far above what a supervisor itself allows a program that waits for a processor.
            async with asyncio.timeout(10 * program.run_seconds + SLACK_SECONDS):
                self._process.stdin.write(encode(vars(program)))
                await self._process.stdin.drain()
                answer = await self._receive()
        except TimeoutError:
            await self.kill()
            raise SandboxFailed("a sandbox hung and was killed") from None
        except ConnectionError as error:
            await self.kill()
            raise SandboxFailed(f"a sandbox ended: {error}") from error
        if "failed" in answer:
            raise SandboxFailed(answer["failed"])
        return Run(**{**answer, "end": End(answer["end"])})

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            header = await self._process.stdout.readexactly(LENGTH_BYTES)
            body = await self._process.stdout.readexactly(int.from_bytes(header, "little"))
        except asyncio.IncompleteReadError:
            code = await self._process.wait()
            raise SandboxFailed(f"a sandbox ended with code {code}") from None
        answer: dict[str, Any] = json.loads(body)
        return answer

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def kill(self) -> None:
        """End it at once; the program under it goes with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class Sandbox:
    """Runs up to `seats` programs at a time; the rest waits its turn. Use as an asynchronous context manager.

    `layers` are those that may be used: all that work, unless a test leaves some out.
    """

    def __init__(self, seats: int = 2, layers: frozenset[Layer] = ALL_LAYERS) -> None:
        if seats < 1:
            raise ValueError(f"a sandbox needs at least one seat, not {seats}")
        self.layers = layers
        self._seats: asyncio.Queue[_Supervisor | None] = asyncio.Queue()
        self._size = seats
        self._all: set[_Supervisor] = set()
        self._scratch = ""

    async def __aenter__(self) -> Self:
        """Start the first supervisor and look for ways out. Raises `SandboxUnavailable`."""
        self._scratch = tempfile.mkdtemp(prefix="rljob-sandbox-")
        try:
            first, self.layers = await self._start()
            self._seats.put_nowait(first)
            for _ in range(self._size - 1):
                self._seats.put_nowait(None)
            await self._look_for_ways_out()
        except SandboxFailed as error:
            await self.__aexit__(None, None, None)
            raise SandboxUnavailable(f"the sandbox does not work here: {error}") from error
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that runs."""
        for supervisor in list(self._all):
            await self._dismiss(supervisor)
        try:
            await asyncio.to_thread(remove, self._scratch)
        except OSError as trouble:
            log.warning("the sandbox's folder stays behind: %s", trouble)

    async def run(self, program: Program) -> Run:
        """The program's end. Raises `SandboxFailed`."""
        seat = await self._seats.get()
        try:
            if seat is None:
                seat, _ = await self._start()
            return await seat.run(program)
        except asyncio.CancelledError:  # it still works on the program
            if seat is not None:
                await self._dismiss(seat)
            raise
        finally:
            if seat is not None and not seat.alive:
                await self._dismiss(seat)
                seat = None
            self._seats.put_nowait(seat)

    async def _start(self) -> tuple[_Supervisor, frozenset[Layer]]:
        supervisor, layers = await _Supervisor.start(self._scratch, self.layers)
        self._all.add(supervisor)
        return supervisor, layers

    async def _dismiss(self, supervisor: _Supervisor) -> None:
        self._all.discard(supervisor)
        await supervisor.kill()

    async def _look_for_ways_out(self) -> None:
        secret = Path(tempfile.gettempdir()) / f"rljob-canary-{secrets.token_hex(8)}"
        secret.touch(mode=0o600)
        try:
            run = await self.run(Program(f"CANARY = {str(secret)!r}\n{_WAYS_OUT}"))
        finally:
            secret.unlink()
            Path(f"{secret}.new").unlink(missing_ok=True)
        layers = ", ".join(sorted(self.layers))
        if not run.clean or not run.stdout.startswith("ways out:"):
            raise SandboxUnavailable(f"a harmless program fails in the sandbox ({layers}): {run.end} {run.stderr}")
        found = run.stdout.removeprefix("ways out:").strip()
        if found:
            raise SandboxUnavailable(f"the sandbox ({layers}) leaks; a program can: {found}")


def _environment() -> dict[str, str]:
    """What a supervisor needs to start, and nothing that is secret."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
