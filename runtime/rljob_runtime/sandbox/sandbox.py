"""Sandbox: runs untrusted programs, several at a time: `async with Sandbox() as sandbox: await sandbox.run(program)`.

Each process of the pool is a supervisor. Opening the sandbox runs a program that tries to escape. So a machine whose
layers do not hold is found before a model's code runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rljob_runtime
from rljob_runtime.sandbox.confine_child import installed_packages
from rljob_runtime.sandbox.framing import MessageTooLong, receive, send
from rljob_runtime.sandbox.process_pool import ChildProcess, ProcessPool
from rljob_runtime.sandbox.program import End, Layer, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.scratch import remove

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Bound of a supervisor's start."""
SLACK_SECONDS = 300.0
"""Time for a supervisor to end a program or to report a failure. After it, the supervisor itself counts as hung."""
ALL_LAYERS = frozenset(Layer)

_ESCAPE_ATTEMPTS = """
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
attempt("empty a file outside its folder", os.open, CANARY, os.O_RDONLY | os.O_TRUNC)
attempt("empty a device that it may read", os.open, "/dev/zero", os.O_RDONLY | os.O_TRUNC)
attempt("open a file without asking for a right", os.open, CANARY, os.O_ACCMODE)
attempt("read the package that runs it", open, PACKAGE)
attempt("open a socket", socket.socket)
attempt("start a process", os.fork)
attempt("signal another process", os.kill, os.getppid(), 0)
open("own", "w").write("it may write here")
time.sleep(0.1)  # long enough for a check of its usage
print("escapes:", ", ".join(found))
"""


def longest_run_seconds(program: Program) -> float:
    """Return a bound far above the time that a supervisor allows a program that waits for a processor."""
    return 10 * program.run_seconds + SLACK_SECONDS


class _Supervisor(ChildProcess):
    """One supervisor process."""

    async def ready(self) -> frozenset[Layer]:
        """Return the layers that work.

        Raises `SandboxUnavailable`, or `SandboxFailed` when the supervisor does not start.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._receive()
        except TimeoutError:
            raise SandboxFailed(f"a sandbox did not start within {START_SECONDS:g} s") from None
        if "unavailable" in answer:
            raise SandboxUnavailable(answer["unavailable"])
        return frozenset(map(Layer, answer["layers"]))

    async def run(self, program: Program) -> Run:
        """Run a program.

        Raises `SandboxFailed`. After that, or after a cancellation, `alive` says whether the supervisor can be used
        again.
        """
        try:
            async with asyncio.timeout(longest_run_seconds(program)):
                await send(self.stdin, vars(program))
                answer = await self._receive()
        except TimeoutError:
            await self.kill()
            raise SandboxFailed("a sandbox hung and was killed") from None
        except MessageTooLong as error:
            raise SandboxFailed(f"the program and its input are too long: {error}") from error
        except ConnectionError as error:
            await self.kill()
            raise SandboxFailed(f"a sandbox ended: {error}") from error
        if "failed" in answer:
            raise SandboxFailed(answer["failed"])
        return Run(**{**answer, "end": End(answer["end"])})

    async def _receive(self) -> dict[str, Any]:
        answer = await receive(self.stdout)
        if answer is None:
            await self.kill()  # it may continue after sending something that is no message
            raise SandboxFailed(f"a sandbox ended with code {await self.exit_code()}")
        return answer


class Sandbox:
    """Runs up to `processes` programs at a time; others wait.

    Use it as an asynchronous context manager. `layers` are the layers that it may use: by default all that work.
    """

    def __init__(self, processes: int = 2, layers: frozenset[Layer] = ALL_LAYERS) -> None:
        self.layers = layers
        self.pool = ProcessPool(processes, self._start)
        self._scratch = ""

    async def __aenter__(self) -> Self:
        """Start the first supervisor and try to escape from it.

        Raises `SandboxUnavailable`.
        """
        self._scratch = tempfile.mkdtemp(prefix="rljob-sandbox-")
        try:
            await self._probe_escapes()
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
        """End all supervisors and programs."""
        await self.pool.close()
        try:
            await asyncio.to_thread(remove, self._scratch)
        except OSError as error_of_removal:
            log.warning("the sandbox's folder stays behind: %s", error_of_removal)

    @property
    def processes_started(self) -> int:
        """Number of supervisors so far."""
        return self.pool.started

    async def run(self, program: Program) -> Run:
        """Run the program and return its end.

        Raises `SandboxFailed`.
        """
        try:
            return await self._run(program)
        except SandboxUnavailable as error:  # a later supervisor, unlike the first one
            raise SandboxFailed(str(error)) from error

    async def _run(self, program: Program) -> Run:
        """Run the program.

        Raises `SandboxUnavailable` besides the errors of `run`.
        """
        async with self.pool.acquire() as supervisor:
            return await supervisor.run(program)

    async def _start(self) -> _Supervisor:
        # These options skip the start-up files of the environment: a supervisor needs only the standard library and us.
        home = str(Path(rljob_runtime.__file__).parents[1])
        code = f"import sys; sys.path[:0] = [{home!r}]; from rljob_runtime.sandbox.supervisor import main; main()"
        settings = (self._scratch, json.dumps(sorted(self.layers)), json.dumps(installed_packages()))
        command = (sys.executable, "-s", "-S", "-P", "-c", code, *settings)
        try:
            supervisor = await _Supervisor.spawn(*command, environment=_environment())
        except OSError as error:  # no process or no memory left
            raise SandboxFailed(f"a sandbox could not be started: {error}") from error
        try:
            self.layers = await supervisor.ready()
        except BaseException:
            await supervisor.kill()
            raise
        return supervisor

    async def _probe_escapes(self) -> None:
        secret = Path(tempfile.gettempdir()) / f"rljob-canary-{secrets.token_hex(8)}"
        secret.touch(mode=0o600)
        try:
            run = await self._run(
                Program(f"CANARY, PACKAGE = {str(secret)!r}, {rljob_runtime.__file__!r}\n{_ESCAPE_ATTEMPTS}")
            )
        finally:
            secret.unlink()
            Path(f"{secret}.new").unlink(missing_ok=True)
        layers = ", ".join(sorted(self.layers))
        if not run.clean or not run.stdout.startswith("escapes:"):
            raise SandboxUnavailable(f"a harmless program fails in the sandbox ({layers}): {run.end} {run.stderr}")
        found = run.stdout.removeprefix("escapes:").strip()
        if found:
            raise SandboxUnavailable(f"the sandbox ({layers}) leaks; a program can: {found}")


def _environment() -> dict[str, str]:
    """Return the variables that a supervisor needs to start, without secrets."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
