"""What replicas with nothing to do are to do, in `mode: Asynchronous`: take newer weights, or prompts of their own
(Laminar, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

Admit = Callable[[int, Sequence[int]], int]
"""How many groups may be begun with weights of this version, when groups of those versions are begun before."""


@dataclass(frozen=True)
class Idle:
    """A replica that generates nothing. `version`: the weights that it holds; None while it holds none, or loads.
    `newer`: those that it could take; None where what it holds is the newest within its reach."""

    replica: str
    version: int | None
    newer: int | None = None


@dataclass(frozen=True)
class Load:
    replica: str
    version: int


@dataclass(frozen=True)
class Draw:
    """`groups`: as many prompts as the replica is to draw, and to generate with `version`."""

    replica: str
    version: int
    groups: int


@dataclass(frozen=True)
class Occupation:
    """`closed`: replicas that would draw, but with their weights nothing may be begun now."""

    loads: tuple[Load, ...]
    draws: tuple[Draw, ...]
    closed: tuple[str, ...]


def batch_size(prompts_per_round: int, replicas: int) -> int:
    """Prompts that a replica draws at a time: its share of an update.

    >>> batch_size(128, 16), batch_size(3, 2), batch_size(1, 4)
    (8, 2, 1)
    """
    return max(1, ceil(prompts_per_round / max(1, replicas)))


def occupy(idle: Iterable[Idle], share: int, wanted: int, admit: Admit) -> Occupation:
    """Newer weights come first: whoever draws stays with what it holds until the draw is done. Then, in the order
    given, each draws `share` groups, or as many as there is room for. `wanted`: groups that are still to be begun, by
    whomever.

    >>> occupy([Idle("a", 3, newer=4), Idle("b", 4), Idle("c", 4)], 2, 3, lambda version, begun: 8).draws
    (Draw(replica='b', version=4, groups=2), Draw(replica='c', version=4, groups=1))
    """
    loads: list[Load] = []
    draws: list[Draw] = []
    closed: list[str] = []
    begun: list[int] = []
    room: dict[int, int] = {}
    for one in idle:
        if one.newer is not None:
            loads.append(Load(one.replica, one.newer))
        elif one.version is not None and len(begun) < wanted:
            if one.version not in room:
                room[one.version] = min(admit(one.version, begun), wanted - len(begun))
            if room[one.version] > 0:
                draws.append(Draw(one.replica, one.version, min(share, room[one.version])))
                begun.extend([one.version] * draws[-1].groups)
                # Groups of one version may be in the way of those of another.
                room.clear()
            else:
                closed.append(one.replica)
    return Occupation(tuple(loads), tuple(draws), tuple(closed))
