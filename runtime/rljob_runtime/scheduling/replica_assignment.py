"""What replicas are to do, in `mode: Asynchronous`: take newer weights, or prompts of their own (Laminar, section 3).

A replica draws only with the newest weights within its reach, and may draw while it has responses still; when there are
newer ones it draws nothing more, and takes them when it has nothing left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil

Admit = Callable[[int, Sequence[int]], int]
"""How many groups may be begun with weights of this version, when groups of those versions are begun before."""
MOST_SHARES = 3
"""Of an update, that a replica holds at most."""


@dataclass(frozen=True)
class ReplicaState:
    """A replica. `version`: the weights that it holds; None while it holds none, or loads. `newer`: those that it could
    take; None where what it holds is the newest within its reach. `load`: responses that it has not ended."""

    replica: str
    version: int | None
    newer: int | None = None
    load: int = 0


@dataclass(frozen=True)
class ReplicaLimits:
    """Of each replica, in groups of `group_size` responses: `share` is its part of an update, `most` what it may hold
    at a time."""

    group_size: int
    share: int
    most: int

    @classmethod
    def of(cls, group_size: int, prompts_per_round: int, replicas: int, capacity: int) -> ReplicaLimits:
        """`most` is its part of what may be open beside the update that is being gathered: from one share to three.

        >>> ReplicaLimits.of(16, 128, 16, 256), ReplicaLimits.of(16, 128, 16, 384)
        (ReplicaLimits(group_size=16, share=8, most=8), ReplicaLimits(group_size=16, share=8, most=16))
        """
        beside = max(prompts_per_round, min(capacity - prompts_per_round, MOST_SHARES * prompts_per_round))
        share, most = (max(1, ceil(groups / max(1, replicas))) for groups in (prompts_per_round, beside))
        return cls(group_size, share, most)


@dataclass(frozen=True)
class WeightLoad:
    replica: str
    version: int


@dataclass(frozen=True)
class PromptQuota:
    """`groups`: as many prompts as the replica is to draw, and to generate with `version`."""

    replica: str
    version: int
    groups: int


@dataclass(frozen=True)
class Assignment:
    """`closed`: replicas with nothing to do that would draw, but with their weights nothing may be begun now."""

    loads: tuple[WeightLoad, ...]
    draws: tuple[PromptQuota, ...]
    blocked: tuple[str, ...]


def assign(seats: Iterable[ReplicaState], quota: ReplicaLimits, wanted: int, admit: Admit) -> Assignment:
    """Newer weights come first: whoever draws stays with what it holds until that is done. Then, the newest weights
    before older ones, replicas draw what there is room for, by `split_quota`. `wanted`: groups that are still to be
    begun, by whomever.

    >>> seats = [ReplicaState("a", 3, newer=4), ReplicaState("b", 4), ReplicaState("c", 4, load=1)]
    >>> assign(seats, ReplicaLimits(group_size=2, share=2, most=2), 3, lambda version, begun: 8).draws
    (PromptQuota(replica='c', version=4, groups=1), PromptQuota(replica='b', version=4, groups=2))
    """
    loads: list[WeightLoad] = []
    able: dict[int, dict[str, int]] = {}
    for seat in seats:
        if seat.newer is not None:
            loads += [WeightLoad(seat.replica, seat.newer)] if not seat.load else []
        elif seat.version is not None:
            able.setdefault(seat.version, {})[seat.replica] = seat.load
    draws: list[PromptQuota] = []
    begun: list[int] = []
    for version in sorted(able, reverse=True):
        # Groups of one version may be in the way of those of another.
        room = min(admit(version, begun), wanted - len(begun))
        shares = split_quota(room, able[version], quota)
        draws += [PromptQuota(replica, version, groups) for replica, groups in shares.items()]
        begun += [version] * sum(shares.values())
    drawing = {draw.replica for draw in draws}
    idle = (name for its in able.values() for name, load in its.items() if not load and name not in drawing)
    return Assignment(tuple(loads), tuple(draws), tuple(idle) if len(begun) < wanted else ())


def split_quota(room: int, loads: Mapping[str, int], quota: ReplicaLimits) -> dict[str, int]:
    """How many prompts each of these replicas draws, where `room` may be begun. `loads`: their responses.

    First each comes to its share, the one with most to do before the others: where too little is wanted for all, the
    last of them stand still, and it is seen that there are too many. Then prompt after prompt goes to the one that has
    the least to do.
    """
    shares: dict[str, int] = {}
    for name in sorted(loads, key=lambda name: (-loads[name], name)):
        more = min(room, quota.share - ceil(loads[name] / quota.group_size))
        if more > 0:
            shares[name] = more
            room -= more
    places = [(load + quota.group_size * shares.get(name, 0), name) for name, load in loads.items()]
    heapify(places)
    while places and room > 0:
        load, name = places[0]
        if load + quota.group_size > quota.most * quota.group_size:
            heappop(places)
            continue
        heapreplace(places, (load + quota.group_size, name))
        shares[name] = shares.get(name, 0) + 1
        room -= 1
    return shares
