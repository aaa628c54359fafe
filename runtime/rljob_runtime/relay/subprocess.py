"""Relay subprocesses: drives relays that run as separate processes (`python -m rljob_runtime.relay`).

Tests and benchmarks use it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.protocols import Chain, RelayMember, RelayStatus
from rljob_runtime.relay.segment import Segment


@dataclass(frozen=True)
class RelayCommand:
    """Command of a relay process. `prefix` precedes it (`ip netns exec …`); `options` are further ones."""

    machine: str
    folder: Path
    key_file: Path
    host: str = "127.0.0.1"
    incarnation: int = 0
    prefix: Sequence[str] = ()
    options: Sequence[str] = ()

    def line(self) -> list[str]:
        """Return the command line."""
        command = [*self.prefix, sys.executable, "-m", "rljob_runtime.relay", "--machine", self.machine]
        command += ["--incarnation", str(self.incarnation), "--folder", str(self.folder)]
        return [*command, "--key-file", str(self.key_file), "--host", self.host, *self.options]


class RelayProcess:
    """A relay process.

    Use as a context manager: at its end the process gets SIGTERM, and SIGKILL if it does not end. Raises RuntimeError
    with its output if it does not start.
    """

    def __init__(self, command: RelayCommand) -> None:
        self.machine = command.machine
        self.incarnation = command.incarnation
        self.segment = Segment.open(command.folder)
        self.process = subprocess.Popen(command.line(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._first = RelayStatus(**self._read())

    @property
    def member(self) -> RelayMember:
        """Chain member that other relays connect to."""
        return RelayMember(self.machine, self.incarnation, self._first.host, self._first.port)

    def join(self, chain: Chain, term: int = 1) -> RelayStatus:
        """Give it a chain; return its status afterwards."""
        return RelayStatus(**self._ask({"join": asdict(chain), "term": term}))

    def status(self, term: int = 1) -> RelayStatus:
        """Return its status."""
        return RelayStatus(**self._ask({"status": True, "term": term}))

    def probe(self, member: RelayMember, term: int = 1) -> bool:
        """Return whether the machine of `member` answers it."""
        return bool(self._ask({"probe": asdict(member), "term": term})["reached"])

    def close(self, timeout: float = 20.0) -> int:
        """Send SIGTERM and return the exit status. Raises subprocess.TimeoutExpired after killing it."""
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()

    def kill(self) -> None:
        """Send SIGKILL, like a machine that loses power."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": f"the relay ended with status {self.process.wait()}"}
        )
        if "error" in answer:
            raise RuntimeError(f"{self.machine}: {answer['error']}")
        return answer
