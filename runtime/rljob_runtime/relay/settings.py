"""How patient neighbours are with each other, derived from `spec.relay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RelaySpec(Protocol):
    """The fields of `spec.relay` that are read here."""

    @property
    def chunk_bytes(self) -> int: ...
    @property
    def heartbeat_seconds(self) -> float: ...
    @property
    def rebuild_timeout_seconds(self) -> float: ...


@dataclass(frozen=True)
class RelaySettings:
    """Seconds and bytes. The defaults are those of `spec.relay`."""

    chunk_bytes: int = 32 << 20
    heartbeat_seconds: float = 0.5
    rebuild_timeout_seconds: float = 10.0

    @classmethod
    def of(cls, spec: RelaySpec) -> RelaySettings:
        """The settings in `spec.relay`."""
        return cls(spec.chunk_bytes, spec.heartbeat_seconds, spec.rebuild_timeout_seconds)

    @property
    def silence_seconds(self) -> float:
        """How long a connection may make no progress at all. A sender with nothing to send beats, so silence means a
        peer or a path that is gone; the floor lets TCP repeat a lost packet a few times."""
        return max(2.0, 4 * self.heartbeat_seconds)

    @property
    def answer_seconds(self) -> float:
        """How long a machine has to answer a connection: for a neighbour that asks whether it is still there, and for a
        link, which must not be held up by a machine without power when the chain closes over it. A packet and its
        answer, so the floor is for networks and machines that are busy."""
        return max(0.5, self.heartbeat_seconds)

    @property
    def handshake_seconds(self) -> float:
        """How long two neighbours may take to prove to each other who they are: a few frames, so as long as any of them
        may take alone, and once more."""
        return 2 * self.silence_seconds
