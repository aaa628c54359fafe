"""TCP transport of the relay: see `transport`."""

from __future__ import annotations

import contextlib
import errno
import select
import socket

from rljob_runtime.relay.network.transport import Connection, Listener
from rljob_runtime.relay.slot import SlotFile

PROBES = 2
"""Connection attempts before a machine counts as unreachable: one packet may be lost."""

SILENCE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH})
"""Errors of a connection attempt to which no machine answers."""
ANSWERS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})
"""Errors of a connection attempt that the machine answers although nothing listens."""


class TcpConnection:
    """`transport.Connection` over a connected socket."""

    def __init__(self, connection: socket.socket, silence: float) -> None:
        self.socket = connection
        connection.settimeout(silence)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes, more: bool = False) -> None:
        self.socket.sendall(data, socket.MSG_MORE if more else 0)

    def send_memory(self, file: SlotFile, start: int, nbytes: int) -> int:
        with open(file.descriptor, "rb", closefd=False) as source:
            return self.socket.sendfile(source, start, nbytes)

    def receive_into(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            received = self.socket.recv_into(target[done:])
            if not received:
                raise ConnectionResetError("the peer closed the connection")
            done += received

    def ended(self) -> bool:
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        """Shut the socket down; only the owner closes it.

        Another file may reuse a descriptor that is closed under a running sendfile.
        """
        with contextlib.suppress(OSError):  # It may be disconnected already.
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


class TcpListener:
    """`transport.Listener`."""

    def __init__(self, host: str, port: int, silence: float) -> None:
        self._socket = socket.create_server((host, port), family=_family(host))
        self._silence = silence
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def accept(self) -> tuple[Connection, str]:
        connection, address = self._socket.accept()
        return _made(connection, self._silence), str(address[0])

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # It may be closed already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class Tcp:
    """`transport.Transport`."""

    def connect(self, host: str, port: int, patience: float, silence: float) -> Connection:
        return _made(socket.create_connection((host, port), patience), silence)

    def listen(self, host: str, port: int, silence: float) -> Listener:
        return TcpListener(host, port, silence)

    def reaches(self, host: str, port: int, seconds: float) -> bool:
        for _ in range(PROBES):
            try:
                socket.create_connection((host, port), seconds / PROBES).close()
                return True
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno in ANSWERS:
                    return True
                if error.errno not in SILENCE:
                    raise
        return False


def _made(connection: socket.socket, silence: float) -> TcpConnection:
    try:
        return TcpConnection(connection, silence)
    except OSError:
        connection.close()
        raise


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


TCP = Tcp()
