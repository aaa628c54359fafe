"""Relay settings: timeouts between neighbours, derived from `spec.relay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RelaySpec(Protocol):
    """Fields of `spec.relay` that are used here."""

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
        """Return the settings in `spec.relay`."""
        return cls(spec.chunk_bytes, spec.heartbeat_seconds, spec.rebuild_timeout_seconds)

    @property
    def silence_seconds(self) -> float:
        """Longest time without any progress on a connection.

        An idle sender sends heartbeats, so silence means that the peer or the path is gone. The minimum lets TCP repeat
        a lost packet a few times.
        """
        return max(2.0, 4 * self.heartbeat_seconds)

    @property
    def answer_seconds(self) -> float:
        """Time in which a machine must answer a connection attempt, by a probing neighbour or by a sender.

        A sender must not be held up by a machine without power when the chain closes over it. The minimum serves
        networks and machines under load, where a packet and its answer take longer.
        """
        return max(0.5, self.heartbeat_seconds)

    @property
    def handshake_seconds(self) -> float:
        """Time in which two neighbours must authenticate each other: a few frames, so twice the time of one."""
        return 2 * self.silence_seconds
