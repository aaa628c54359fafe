"""The relay of a rollout machine, and the chain over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RelayMember:
    """One link of the chain."""

    machine: str
    incarnation: int
    host: str
    port: int


@dataclass(frozen=True)
class Chain:
    """Order of the broadcast; members[0] is the master. (epoch, revision) is compared as a pair: lower is refused,
    higher adopted. The operator owns `epoch`, the coordinator raises `revision` at each repair."""

    epoch: int
    revision: int
    members: tuple[RelayMember, ...]


@dataclass(frozen=True)
class RelayStatus:
    """`whole` is the newest committed version; `receiving` the one in flight with `chunks_received` of its chunks.
    `link` says how it stands with the successor: Alone, Connecting, Connected, Lost or Refused, and why in
    `link_detail`; `delivered` is the newest version that the successor was seen to hold whole."""

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
        """Where it listens and what it holds."""
        ...

    async def join(self, term: int, chain: Chain) -> None:
        """Adopt this chain: the successor is found in it by machine name. Raises `Refused` for a lower number."""
        ...

    async def probe(self, term: int, member: RelayMember) -> bool:
        """Whether the machine of `member` answers this one, if only to say that no relay listens there: a process that
        ended is no machine that is gone. Takes about a beat. Raises `Refused` where that cannot be known."""
        ...
