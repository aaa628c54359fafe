"""Transport: what the relay requires of a network. Frames, handshake, resuming and repair are independent of it.

`tcp.TCP` is the only implementation. One over RDMA would register a slot's memory at its first use, and post a write
where TCP calls `sendfile` and `recv`. It must provide ordered delivery, silence as an error, and an `interrupt` from
another thread. All methods raise OSError and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from rljob_runtime.relay.slot import SlotFile


class Connection(Protocol):
    """Ordered stream of bytes to one peer. Every operation fails if nothing moves for the connection's time."""

    def send(self, data: bytes, more: bool = False) -> None:
        """Send all of `data`. `more`: the rest of a frame follows immediately."""
        ...

    def send_memory(self, file: SlotFile, start: int, nbytes: int) -> int:
        """Send this part of a slot's file without a copy through this process; return the bytes sent.

        The memory may still be read after the return: hold the slot until the peer has answered.
        """
        ...

    def receive_into(self, target: memoryview) -> None:
        """Fill `target`, which may be a slot's memory."""
        ...

    def ended(self) -> bool:
        """Return whether the peer has ended the connection, as far as is known now; does not wait."""
        ...

    def interrupt(self) -> None:
        """End the connection from another thread: the owner's pending operation fails immediately."""
        ...

    def close(self) -> None:
        """Close the connection; only its owning thread may."""
        ...


class Listener(Protocol):
    """Listener to which peers connect."""

    address: tuple[str, int]

    def accept(self) -> tuple[Connection, str]:
        """Return the next connection and the host that it comes from."""
        ...

    def interrupt(self) -> None:
        """Stop waiting: an `accept` in another thread fails immediately."""
        ...

    def close(self) -> None:
        """Close the listener, when no thread waits in `accept`."""
        ...


class Transport(Protocol):
    """Makes connections. `silence`: seconds without any progress after which an operation on one fails."""

    def connect(self, host: str, port: int, patience: float, silence: float) -> Connection:
        """Connect to a listener within `patience` seconds."""
        ...

    def listen(self, host: str, port: int, silence: float) -> Listener:
        """Listen on this address; port 0 takes a free one."""
        ...

    def reaches(self, host: str, port: int, seconds: float) -> bool:
        """Return whether the machine at `host` answers at all within `seconds`; a refused connection is an answer.

        Raises OSError if that cannot be determined.
        """
        ...
