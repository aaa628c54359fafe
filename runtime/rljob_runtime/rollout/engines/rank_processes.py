"""Rank processes: forked warm from a fork server, and commanded together, each over a socket of its own.

Every rank gets the same commands in the same order. An error of one of them is the error of all, whatever the others
wait for: one that waits for a dead rank in a collective would wait for ever.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""A rank that is idle ends in far less."""
GONE_SECONDS = 20.0
"""Until the system has taken back what a killed process held: memory of an accelerator among it."""


class RankDied(RuntimeError):
    """A rank process ended: what the ranks held together is lost."""


class ForkServer:
    """Forks ranks that are each a `peer`: `module:class`, as `fork_server` says. Begins to import at once, in the
    background."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._launch()

    def _launch(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # A group of its own, that it can end as a whole.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_runtime.rollout.engines.fork_server", self._peer, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )

    def fork(self, devices: Sequence[str]) -> Connection:
        """The way to a new rank that sees these devices (none: as the fork server does)."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Never an empty message: that is the end.
                socket.send_fds(self._control, [json.dumps(list(devices)).encode()], [theirs.fileno()])
            except OSError as error:
                raise RankDied(f"the process that ranks are forked from has ended: {error}") from error
        return Connection(ours.detach())

    def revive(self) -> None:
        """Begin anew where its process has ended, and its ranks with it."""
        if self._process.poll() is not None:
            self._control.close()
            self._launch()

    def close(self) -> None:
        """End it and every rank that is left, at once."""
        self._control.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RankProcesses:
    """`count` ranks that see the same `devices`. `grace`: seconds that the others may take to answer after one of them
    has raised, or until their end is noticed. One thread uses it, but for `interrupt`."""

    def __init__(self, fork_server: ForkServer, count: int, devices: Sequence[str] = (), *, grace: float) -> None:
        self.grace = grace
        self.pids: list[int] = []
        self._ended: set[Connection] = set()
        self.connections = [fork_server.fork(devices) for _ in range(count)]
        try:
            self.pids = self._receive_all()
        except BaseException:
            self.kill()
            raise

    # --- commands ---

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The answer of each rank. Raises what one of them raises, and `RankDied`."""
        return self.call_each(method, [arguments] * len(self.connections))

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The same, with arguments of its own for each rank."""
        answers = self.results(method, arguments)
        for _, error in answers:
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def results(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[Any, Exception | None]]:
        """The value or the error of each rank."""
        for connection, own in zip(self.connections, arguments, strict=True):
            try:
                connection.send((method, own))
            except OSError as error:
                raise self._died(connection) from error
        return [tuple(answer) for answer in self._receive_all()]  # type: ignore[misc]

    def _receive_all(self) -> list[Any]:
        """One message of every rank. The end of any rank ends the waiting, and soon after it an error does: the others
        may wait for that rank for ever. Who has not answered by then is ended, and the error raised. The end of a rank
        is raised before any error."""
        received: dict[Connection, Any] = {}
        failure: Exception | None = None
        ends: float | None = None
        while len(received) < len(self.connections):
            silent = [connection for connection in self.connections if connection not in received]
            ready = wait(silent, None if ends is None else max(0.0, ends - time.monotonic()))
            if failure is not None and not ready:
                self._kill_silent(silent)
                raise failure
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    received[connection] = message = connection.recv()
                except (EOFError, OSError) as error:
                    # The others' errors are of its making: who waits for a rank in a collective raises when it ends.
                    raise self._died(connection) from (failure or error)
                if failure is None and isinstance(message, tuple) and message[1] is not None:
                    failure, ends = message[1], time.monotonic() + self.grace
        return [received[connection] for connection in self.connections]

    def _kill_silent(self, silent: Sequence[Connection]) -> None:
        """End ranks that do not answer: the next command finds the others alone, and no late answer is taken for its
        own."""
        for rank, (connection, pid) in enumerate(zip(self.connections, self.pids, strict=True)):
            if connection in silent:
                log.warning("rank %d is ended: it did not answer within %g s", rank, self.grace)
                self._kill_rank(connection, pid)
                self._ended.add(connection)

    def _died(self, connection: Connection) -> RankDied:
        self._ended.add(connection)
        rank = self.connections.index(connection)
        pid = self.pids[rank] if self.pids else "?"
        return RankDied(f"rank {rank} of {len(self.connections)} (process {pid}) has ended; its log has the cause")

    # --- the end ---

    def close(self) -> None:
        """End the ranks: by a word, or where one does not hear it, by force."""
        for connection in self.connections:
            with suppress(OSError):
                connection.send(("close", ()))
        while remaining := [connection for connection in self.connections if connection not in self._ended]:
            ready = [connection for connection in wait(remaining, CLOSE_SECONDS) if isinstance(connection, Connection)]
            for connection in ready:
                try:
                    connection.recv()
                except (EOFError, OSError):
                    self._ended.add(connection)
            if not ready:
                break
        self.kill()

    def interrupt(self) -> None:
        """End what runs, from any thread: a command in progress raises `RankDied`."""
        # Before the ranks have said their ids there is nothing to end.
        for connection, pid in zip(list(self.connections), list(self.pids), strict=False):
            self._kill_rank(connection, pid)

    def kill(self) -> None:
        """End what has not ended yet."""
        self.interrupt()
        for connection in self.connections:
            connection.close()
        self.connections = []

    def wait_gone(self) -> bool:
        """Whether nothing of them is left after `kill`, within `GONE_SECONDS`."""
        ends = time.monotonic() + GONE_SECONDS
        while any(_exists(pid) for pid in self.pids):
            if time.monotonic() > ends:
                return False
            time.sleep(0.005)
        return True

    def _kill_rank(self, connection: Connection, pid: int) -> None:
        """The id of a process that has ended may be somebody else's by now."""
        if connection not in self._ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's by now
        return False
    return True
