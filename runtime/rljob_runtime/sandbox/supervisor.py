"""Supervisor: starts, monitors, ends and reports untrusted programs, one after the other.

`Sandbox` starts `python -m rljob_runtime.sandbox.supervisor FOLDER LAYERS PACKAGES` with an empty environment and
exchanges JSON frames over its pipes. It imports only the standard library, so it starts fast and stays small. When the
other end closes, or the supervisor dies, the current program is killed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from rljob_runtime.sandbox import landlock, namespaces
from rljob_runtime.sandbox.confine_child import (
    FILE_NAME,
    FOLDER_BYTES,
    STDIN_NAME,
    Filesystem,
    Interpreter,
    confine_and_run,
)
from rljob_runtime.sandbox.framing import read_frame, write_frame
from rljob_runtime.sandbox.program import End, Layer, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.resource_usage import bytes_written, cpu_seconds, starved, threads, waited_seconds
from rljob_runtime.sandbox.scratch import count_entries, remove
from rljob_runtime.sandbox.syscalls import PR_SET_PDEATHSIG, prctl

POLL_SECONDS = 0.02
"""Interval between checks of a running program's usage. Between two checks it can exceed a limit by what it can do in
that time."""
MAX_FILES = 1000
MAX_THREADS = 64
STDERR_BYTES = 4096
UNREADABLE_SECONDS = 2.0
"""A program whose usage stays unreadable for this long is killed. A program that is ending may be unreadable for a
short time."""


class Abandoned(BaseException):
    """The caller has left."""


class Supervisor:
    """Runs programs below a scratch folder.

    It uses the layers that work here, out of `layers`. Programs may import from `packages`. Raises `SandboxUnavailable`
    if no layer works.
    """

    def __init__(self, scratch: str, layers: frozenset[Layer], packages: Iterable[str]) -> None:
        self._interpreter = Interpreter.of_this_process(packages)
        self._scratch = scratch
        missing = {
            layer: reason
            for layer in Layer
            if (reason := self._missing_because(layer) if layer in layers else "switched off") is not None
        }
        self.layers = frozenset(Layer) - missing.keys()
        if not self.layers:
            tried = "; ".join(f"{layer}: {reason}" for layer, reason in missing.items())
            raise SandboxUnavailable(
                f"nothing keeps a program from this machine's files ({tried}). Landlock (Linux 5.13 or later) or user "
                "namespaces for ordinary users would be right"
            )
        self._root: str | None = None
        if Layer.NAMESPACES in self.layers:
            self._root = tempfile.mkdtemp(prefix="root-", dir=scratch)
            namespaces.enter(self._root, self._interpreter.readable, self._interpreter.hidden, FOLDER_BYTES)

    def _missing_because(self, layer: Layer) -> str | None:
        if layer is Layer.NAMESPACES:
            root = tempfile.mkdtemp(prefix="probe-", dir=self._scratch)
            try:
                return namespaces.unavailable(root, self._interpreter.readable, self._interpreter.hidden, FOLDER_BYTES)
            finally:
                os.rmdir(root)
        try:
            landlock.version()
        except OSError as error:
            return str(error)
        return None

    def run(self, program: Program, abandoned: int) -> Run:
        """Run the program to its end.

        Raises `SandboxFailed`, and `Abandoned` when the file descriptor `abandoned` becomes readable.
        """
        with self._filesystem() as filesystem:
            for name, text in ((FILE_NAME, program.source), (STDIN_NAME, program.stdin)):
                with open(os.path.join(filesystem.outside, name), "wb") as file:
                    file.write(text.encode("utf-8", errors="replace"))
            child = _Child.start(program, filesystem, self._interpreter, Layer.LANDLOCK in self.layers)
            try:
                return _Monitor(child, program, filesystem).until_end(abandoned)
            finally:
                child.close()

    @contextmanager
    def _filesystem(self) -> Iterator[Filesystem]:
        folder = tempfile.mkdtemp(prefix="box-", dir=self._root or self._scratch)
        try:
            filesystem = Filesystem(self._root, folder.removeprefix(self._root or ""))
            if self._root is not None:
                _link_stdin(f"{self._root}/dev/stdin", os.path.join(filesystem.folder, STDIN_NAME))
            yield filesystem
        finally:
            remove(folder)


def _link_stdin(link: str, target: str) -> None:
    """Link /dev/stdin, for programs that open it by name.

    The new root has no /proc, where the usual link leads.
    """
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(target, link)


class _Child:
    """The process of one program.

    The filter keeps it from starting others.
    """

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.pidfd = os.pidfd_open(pid)
        self._reaped = False

    @classmethod
    def start(cls, program: Program, filesystem: Filesystem, interpreter: Interpreter, use_landlock: bool) -> _Child:
        """Fork, confine and execute.

        Raises `SandboxFailed` when a step fails.
        """
        (stdout, out), (stderr, err), (report, errors_out) = os.pipe(), os.pipe(), os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                stdin = os.open(os.path.join(filesystem.outside, STDIN_NAME), os.O_RDONLY)
                for target, source in enumerate((stdin, out, err)):
                    os.dup2(source, target)
                confine_and_run(program, filesystem, interpreter, use_landlock, supervisor)
            except BaseException as error:
                os.write(errors_out, f"{type(error).__name__}: {error}".encode()[:4000])
            finally:
                os._exit(1)
        for descriptor in (out, err, errors_out):
            os.close(descriptor)
        child = cls(pid, stdout, stderr)
        with open(report, "rb") as file:
            reason = file.read().decode(errors="replace")
        if reason:
            child.close()
            raise SandboxFailed(f"the program could not be started: {reason}")
        for descriptor in (stdout, stderr):
            os.set_blocking(descriptor, False)
        return child

    def kill(self) -> None:
        if not self._reaped:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> tuple[int, float]:
        """Wait for the end and return the exit status, or minus the signal, and the processor seconds."""
        _, status, used = os.wait4(self.pid, 0)
        self._reaped = True
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime

    def close(self) -> None:
        """End the process if it runs, and release it."""
        if not self._reaped:
            self.kill()
            self.reap()
        for descriptor in (self.stdout, self.stderr, self.pidfd):
            os.close(descriptor)


class _Monitor:
    """Monitors a running program until it ends or must be ended."""

    def __init__(self, child: _Child, program: Program, filesystem: Filesystem) -> None:
        self._child, self._program, self._filesystem = child, program, filesystem
        self._began = time.monotonic()
        self._waited = 0.0
        self._readable = False
        self._unreadable_since: float | None = None
        self._stdout, self._stderr = bytearray(), bytearray()

    def until_end(self, abandoned: int) -> Run:
        """See `Supervisor.run`."""
        child, end = self._child, None
        with selectors.DefaultSelector() as selector:
            for descriptor in (child.stdout, child.stderr, child.pidfd, abandoned):
                selector.register(descriptor, selectors.EVENT_READ)
            ended = False
            self._check_usage()  # the first check shows whether this machine can read the usage at all
            while not ended:
                ready = {key.fd for key, _ in selector.select(POLL_SECONDS)}
                if abandoned in ready:
                    raise Abandoned
                for descriptor in ready & {child.stdout, child.stderr}:
                    if not self._read(descriptor):
                        selector.unregister(descriptor)
                ended = child.pidfd in ready
                if not ended and end is None and (end := self._exceeded_limit()) is not None:
                    child.kill()
        run_seconds = self._run_seconds()
        code, cpu = child.reap()
        self._drain()
        if end is None or (end is End.HIDDEN and code != -signal.SIGKILL):  # it had ended by itself, but slowly
            end = self._classify_end(code, cpu)
        return Run(end, code, _text(self._stdout), _text(self._stderr), cpu, run_seconds)

    def _classify_end(self, code: int, cpu: float) -> End:
        """Classify the end of a program that the supervisor did not kill."""
        if cpu > self._program.cpu_seconds:
            return End.TIMED_OUT
        if code == -signal.SIGKILL:
            raise SandboxFailed("the program was killed by another process: the machine or the pod is short of memory")
        if len(self._stdout) > self._program.output_bytes:
            return End.TOO_MUCH_OUTPUT
        return End.EXITED if code >= 0 else End.SIGNALLED

    def _exceeded_limit(self) -> End | None:
        """Return the limit that the program exceeds.

        Raises `SandboxFailed` for a program that is starved or cannot be monitored.
        """
        if len(self._stdout) > self._program.output_bytes:
            return End.TOO_MUCH_OUTPUT
        if (end := self._check_usage()) is not None:
            return end
        if count_entries(self._filesystem.outside, MAX_FILES) > MAX_FILES:
            return End.TOO_MANY_FILES
        if self._run_seconds() > self._program.run_seconds:
            return End.TIMED_OUT
        if starved(time.monotonic() - self._began, self._program.run_seconds):
            raise SandboxFailed(f"the program waited {self._waited:.0f} s for a processor: the machine is overloaded")
        return None

    def _check_usage(self) -> End | None:
        """Return the usage limit that the program exceeds.

        Raises `SandboxFailed` if the usage was never readable.
        """
        pid = self._child.pid
        try:
            self._waited = waited_seconds(pid)
            if cpu_seconds(pid) > self._program.cpu_seconds:
                return End.TIMED_OUT
            if threads(pid) > MAX_THREADS:
                return End.TOO_MANY_THREADS
            if bytes_written(pid) > FOLDER_BYTES:
                return End.TOO_MUCH_WRITTEN
        except OSError as error:
            # A process that is ending has no readable usage. A process that continues must not do so unmonitored.
            self._unreadable_since = self._unreadable_since or time.monotonic()
            if time.monotonic() - self._unreadable_since <= UNREADABLE_SECONDS:
                return None
            # Only the program itself can have removed the right to read its usage.
            if self._readable and isinstance(error, PermissionError):
                return End.HIDDEN
            raise SandboxFailed(f"the program cannot be monitored: {error}") from error
        self._readable, self._unreadable_since = True, None
        return None

    def _run_seconds(self) -> float:
        return max(0.0, time.monotonic() - self._began - self._waited)

    def _read(self, descriptor: int) -> bool:
        """Read what is available.

        False at the end.
        """
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if descriptor == self._child.stderr:
            self._stderr = (self._stderr + chunk)[-STDERR_BYTES:]
        elif len(self._stdout) <= self._program.output_bytes:
            self._stdout += chunk
        return bool(chunk)

    def _drain(self) -> None:
        """Read the rest of the pipes after all writers have ended."""
        for descriptor in (self._child.stdout, self._child.stderr):
            while self._read(descriptor):
                pass


def _text(raw: bytearray) -> str:
    return raw.decode("utf-8", errors="replace")


def serve(requests: BinaryIO, replies: BinaryIO, supervisor: Supervisor) -> None:
    """Answer requests until the other end closes."""
    while (request := read_frame(requests)) is not None:
        try:
            run = supervisor.run(Program(**request), requests.fileno())
        except (SandboxFailed, OSError) as error:
            reply: dict[str, Any] = {"failed": str(error)}
        else:
            reply = dataclasses.asdict(run)
        write_frame(replies, reply)


def main() -> None:
    """Take over the pipes, report the layers that work, then serve."""
    scratch, layers, packages = sys.argv[1], frozenset(map(Layer, json.loads(sys.argv[2]))), json.loads(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator handles Ctrl-C
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    requests = os.fdopen(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), "rb", buffering=0)
    replies = os.fdopen(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3), "wb")
    os.dup2(2, 1)
    # Programs inherit this: they are killed first when memory runs out.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    try:
        supervisor = Supervisor(scratch, layers, packages)
    except SandboxUnavailable as error:
        write_frame(replies, {"unavailable": str(error)})
        return
    write_frame(replies, {"layers": sorted(supervisor.layers)})
    try:
        serve(requests, replies, supervisor)
    except Abandoned:
        return


if __name__ == "__main__":
    main()
