"""Processes: long-running ones, known by pid *and* start time, so that a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .settings import ROOT, ClusterError


def start_ticks(pid: int) -> int | None:
    """When the kernel started the process (clock ticks since boot); None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Process:
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.started

    def signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Daemons:
    """Starts processes in the background with a log and a pid file each, and ends them.

    ``tied`` lets the kernel kill them when the thread that started them ends: for fixtures.
    """

    def __init__(self, pids: Path, logs: Path, *, tied: bool = False) -> None:
        self.pids, self.logs, self.tied = pids, logs, tied
        self._children: list[subprocess.Popen[bytes]] = []
        pids.mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Process:
        argv = [str(part) for part in command]
        if self.tied:
            argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        with open(self.log(name), "ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            )
        self._children.append(child)
        process = Process.of(child.pid)
        if process is None:
            raise ClusterError(f"{name} ended immediately; its log: {self.tail(name)}")
        (self.pids / f"{name}.json").write_text(json.dumps(asdict(process)))
        return process

    def get(self, name: str) -> Process | None:
        """Return the process started under that name, dead or alive; None when there was none."""
        try:
            return Process(**json.loads((self.pids / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(p.stem for p in self.pids.glob("*.json"))

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 8) -> str:
        """Return the last lines of the process's log."""
        try:
            text = self.log(name).read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n  ".join(["", *text.splitlines()[-lines:]])

    def forget(self, name: str) -> None:
        (self.pids / f"{name}.json").unlink(missing_ok=True)

    def stop(self, names: Sequence[str], grace: float = 5) -> None:
        """SIGTERM to all, SIGKILL after ``grace`` seconds to those left, and forget them."""
        found = [p for p in map(self.get, names) if p is not None]
        for process in found:
            process.signal(signal.SIGTERM)
        if not wait_gone(found, grace):
            for process in found:
                process.signal(signal.SIGKILL)
            wait_gone(found, 5)
        for name in names:
            self.forget(name)
        # Collect our own children only: a waitpid(-1) would steal the caller's.
        self._children = [child for child in self._children if child.poll() is None]


def wait_gone(processes: Sequence[Process], timeout: float) -> bool:
    """Whether all have ended within ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while any(p.alive for p in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Pick distinct free TCP ports. Another process may take one later: start again on a clash."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind((address, 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
