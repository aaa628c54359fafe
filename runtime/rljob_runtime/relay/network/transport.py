"""What the relay asks of a network: everything above (frames, handshake, resuming, repair) is the same over another.

`tcp.TCP` is the one that there is. One over RDMA registers a slot's memory when it is first sent from or received into,
and posts a write where TCP calls `sendfile` and `recv`; ordered delivery, silence as an error, and an `interrupt` from
another thread are what it has to bring along. All methods raise OSError and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from rljob_runtime.relay.slot import SlotFile


class Connection(Protocol):
    """An ordered stream of bytes to one peer. Every operation fails when nothing moves for the connection's time."""

    def send(self, data: bytes, more: bool = False) -> None:
        """All of `data`. `more`: the rest of a frame follows at once."""
        ...

    def send_memory(self, file: SlotFile, start: int, nbytes: int) -> int:
        """That part of a slot's file, without a copy through this process; how much of it there was. The memory may
        still be read after the return: hold the slot until the peer has answered."""
        ...

    def receive_into(self, target: memoryview) -> None:
        """Fill `target`, which may lie in a slot's memory."""
        ...

    def ended(self) -> bool:
        """Whether the peer has ended it, as far as is known now: does not wait."""
        ...

    def interrupt(self) -> None:
        """End the connection from another thread: what its owner waits for fails at once."""
        ...

    def close(self) -> None:
        """Only the thread that uses it may."""
        ...


class Listener(Protocol):
    """Where peers connect to."""

    address: tuple[str, int]

    def accept(self) -> tuple[Connection, str]:
        """The next one, and the host that it comes from."""
        ...

    def interrupt(self) -> None:
        """Wait for no more: an `accept` in another thread fails at once."""
        ...

    def close(self) -> None:
        """When nobody waits any more."""
        ...


class Transport(Protocol):
    """Makes connections. `silence`: seconds without any progress after which an operation on one fails."""

    def connect(self, host: str, port: int, patience: float, silence: float) -> Connection:
        """To a listener, within `patience` seconds."""
        ...

    def listen(self, host: str, port: int, silence: float) -> Listener:
        """Port 0 takes a free one."""
        ...

    def reaches(self, host: str, port: int, seconds: float) -> bool:
        """Whether the machine at `host` answers at all within `seconds`; one that has nobody listening at `port` says
        so, and answers. Raises OSError where that cannot be known."""
        ...
