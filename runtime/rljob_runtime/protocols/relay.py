"""Relay: passes weights from machine to machine along the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RelayMember:
    """One member of the chain, with its address."""

    machine: str
    incarnation: int
    host: str
    port: int


@dataclass(frozen=True)
class Chain:
    """The order of the broadcast; members[0] is the master.

    (epoch, revision) is compared as a pair: a lower one is refused, a higher one adopted. The operator owns `epoch`;
    the coordinator raises `revision` at each repair.
    """

    epoch: int
    revision: int
    members: tuple[RelayMember, ...]


@dataclass(frozen=True)
class RelayStatus:
    """The state of a relay.

    `whole` is the newest committed version. `receiving` is the version in flight, with `chunks_received` of its chunks.
    `link` is the state of the connection to the successor: Alone, Connecting, Connected, Lost or Refused, with the
    reason in `link_detail`. `delivered` is the newest version that the successor has confirmed completely.
    """

    machine: str
    host: str
    port: int
    epoch: int
    revision: int
    whole: int | None
    receiving: int | None
    chunks_received: int
    bytes_received_total: int
    commits_total: int
    checksum_failures_total: int
    bytes_sent_total: int = 0
    chunks_resent_total: int = 0
    connections_lost_total: int = 0
    predecessor: str | None = None
    successor: str | None = None
    link: str = "Alone"
    link_detail: str = ""
    delivered: int | None = None


class Relay(Protocol):
    """The relay of one rollout machine."""

    machine: str

    async def status(self, term: int) -> RelayStatus:
        """Return its address and the versions that it holds."""
        ...

    async def join(self, term: int, chain: Chain) -> None:
        """Adopt this chain; its own place in it is found by machine name. Raises `Refused` for a lower revision."""
        ...

    async def probe(self, term: int, member: RelayMember) -> bool:
        """Return whether the machine of `member` answers this one.

        A refused connection counts as an answer: a process may end on a machine that lives. Takes about a heartbeat.
        Raises `Refused` if the result is unknown.
        """
        ...
