"""Rank processes: forked from a fork server and commanded together, each over its own socket.

Every rank receives the same commands in the same order. One rank's error is the error of all: the others may wait for
the failed rank in a collective for ever.
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
"""Seconds in which an idle rank must end; it needs far less."""
GONE_SECONDS = 20.0
"""Seconds in which the system frees what a killed process held, including accelerator memory."""


class RankDied(RuntimeError):
    """A rank process has ended. The state that the ranks shared is lost."""


class ForkServer:
    """Client of a fork server process, which forks ranks of the class `peer` ("module:class").

    The process starts importing immediately, in the background.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._launch()

    def _launch(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its own process group, which it can kill completely.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_runtime.rollout.engines.fork_server", self._peer, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )

    def fork(self, devices: Sequence[str]) -> Connection:
        """Fork a rank that sees `devices` and return its connection.

        Without devices it sees what the fork server sees.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # An empty message would mean the end, so the list is always sent as JSON.
                socket.send_fds(self._control, [json.dumps(list(devices)).encode()], [theirs.fileno()])
            except OSError as error:
                raise RankDied(f"the process that ranks are forked from has ended: {error}") from error
        return Connection(ours.detach())

    def revive(self) -> None:
        """Start a new process if the present one has ended. The ranks of the ended process have ended too."""
        if self._process.poll() is not None:
            self._control.close()
            self._launch()

    def close(self) -> None:
        """Kill the fork server and all its ranks."""
        self._control.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RankProcesses:
    """`count` ranks that see the same `devices`.

    `grace`: seconds that the other ranks have to answer, or to end, after one has raised. One thread uses this object;
    `interrupt` may be called from any thread.
    """

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
        """Call `method` on every rank and return all values. Raises the first rank's error, or `RankDied`."""
        return self.call_each(method, [arguments] * len(self.connections))

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` on every rank, each with its own arguments. Raises like `call`."""
        answers = self.results(method, arguments)
        for _, error in answers:
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def results(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[Any, Exception | None]]:
        """Call `method` on every rank and return (value, None) or (None, error) for each."""
        for connection, own in zip(self.connections, arguments, strict=True):
            try:
                connection.send((method, own))
            except OSError as error:
                raise self._died(connection) from error
        return [tuple(answer) for answer in self._receive_all()]

    def _receive_all(self) -> list[Any]:
        """Receive one message from every rank.

        The end of a rank raises immediately and takes precedence over errors. After an error, the others have `grace`
        seconds, because they may wait for the failed rank for ever. Ranks that are silent after that are killed, and
        the error is raised.
        """
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
                    # Its end causes the others' errors: a rank in a collective raises when another rank ends.
                    raise self._died(connection) from (failure or error)
                if failure is None and isinstance(message, tuple) and message[1] is not None:
                    failure, ends = message[1], time.monotonic() + self.grace
        return [received[connection] for connection in self.connections]

    def _kill_silent(self, silent: Sequence[Connection]) -> None:
        """Kill ranks that do not answer, so that no late answer is taken for one to the next command."""
        for rank, (connection, pid) in enumerate(zip(self.connections, self.pids, strict=True)):
            if connection in silent:
                log.warning("rank %d is killed: it did not answer within %g s", rank, self.grace)
                self._kill_rank(connection, pid)
                self._ended.add(connection)

    def _died(self, connection: Connection) -> RankDied:
        self._ended.add(connection)
        rank = self.connections.index(connection)
        pid = self.pids[rank] if self.pids else "?"
        return RankDied(f"rank {rank} of {len(self.connections)} (process {pid}) has ended; its log has the cause")

    # --- the end ---

    def close(self) -> None:
        """End the ranks with a `close` command; kill those that do not react."""
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
        """Kill the ranks, from any thread. A command in progress raises `RankDied`."""
        # Until the ranks have sent their process ids, there is nothing to kill.
        for connection, pid in zip(list(self.connections), list(self.pids), strict=False):
            self._kill_rank(connection, pid)

    def kill(self) -> None:
        """Kill the ranks that have not ended, and close all connections."""
        self.interrupt()
        for connection in self.connections:
            connection.close()
        self.connections = []

    def wait_gone(self) -> bool:
        """Wait after `kill` until all processes are gone; False after `GONE_SECONDS`."""
        ends = time.monotonic() + GONE_SECONDS
        while any(_exists(pid) for pid in self.pids):
            if time.monotonic() > ends:
                return False
            time.sleep(0.005)
        return True

    def _kill_rank(self, connection: Connection, pid: int) -> None:
        """Kill one rank unless it has ended: its process id may be in use by another process then."""
        if connection not in self._ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the id is in use by another user's process
        return False
    return True
