"""Replica assignment: each replica loads newer weights or draws new prompts (Laminar §3).

A replica draws only with the newest weights that it can get, and may draw while it still generates. Once newer weights
are available it draws nothing more, and loads them after its last response. Where versions are mixed, it loads them
between two turns of its responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil

Admit = Callable[[int, Sequence[int]], int]
"""Function: how many groups may start with this version, after groups of these versions."""
MAX_REFUSALS = 5
"""Consecutive refused loads after which a replica's machine is lost."""
REFUSAL_SECONDS = 0.5
"""Delay of the next load per refusal: the replica may still be ending responses that no coordinator expects."""
MOST_SHARES = 3
"""Largest number of an update's shares that a replica holds."""


@dataclass(frozen=True)
class ReplicaState:
    """A replica.

    `version`: its weights; None while it has none or loads. `newer`: weights that it could load; None if it has the
    newest available. `load`: its unfinished responses, `evaluations` of them of evaluations, which have one version.
    `mixes`: whether the others may have newer weights from their next turn on."""

    replica: str
    version: int | None
    newer: int | None = None
    load: int = 0
    evaluations: int = 0
    mixes: bool = False

    @property
    def may_load(self) -> bool:
        """Whether it may load other weights now."""
        return self.load == 0 or (self.mixes and not self.evaluations)


@dataclass(frozen=True)
class ReplicaLimits:
    """Limits of each replica, in groups of `group_size` responses.

    `share`: its part of an update. `most`: the most that it may hold."""

    group_size: int
    share: int
    most: int

    @classmethod
    def of(cls, group_size: int, prompts_per_round: int, replicas: int, capacity: int) -> ReplicaLimits:
        """Derive the limits.

        `most` is its part of what may be open concurrently with the update that is being collected: one to three
        shares.

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
    """Number of prompts (`groups`) that the replica draws and generates with `version`."""

    replica: str
    version: int
    groups: int


@dataclass(frozen=True)
class Assignment:
    """What replicas do next. `blocked`: idle replicas that could draw, but no group of their version may start now."""

    loads: tuple[WeightLoad, ...]
    draws: tuple[PromptQuota, ...]
    blocked: tuple[str, ...]


def next_version(held: int | None, newest: int | None) -> int | None:
    """Return the version that an idle replica should load: its relay's `newest`, unless it holds that or a newer one.

    >>> next_version(None, 3), next_version(2, 3), next_version(3, 3), next_version(2, None)
    (3, 3, None, None)
    """
    return newest if newest is not None and (held is None or newest > held) else None


def load_delay(refusals: int) -> float:
    """Return the seconds to wait before a load, after this many consecutive refusals."""
    return REFUSAL_SECONDS * refusals


def exceeds_refusals(refusals: int) -> bool:
    """Check whether a replica has refused too many loads in a row."""
    return refusals > MAX_REFUSALS


def assign(states: Iterable[ReplicaState], limits: ReplicaLimits, wanted: int, admit: Admit) -> Assignment:
    """Assign weights and prompts to replicas.

    Weights come first: a replica with newer weights available draws nothing and loads them when it may. Then replicas
    draw up to the limits, the newest weights first (`split_quota`). `wanted`: groups that are still to start,
    on any replica.

    >>> replicas = [ReplicaState("a", 3, newer=4), ReplicaState("b", 4), ReplicaState("c", 4, load=1)]
    >>> assign(replicas, ReplicaLimits(group_size=2, share=2, most=2), 3, lambda version, begun: 8).draws
    (PromptQuota(replica='c', version=4, groups=1), PromptQuota(replica='b', version=4, groups=2))
    """
    loads: list[WeightLoad] = []
    able: dict[int, dict[str, int]] = {}
    for state in states:
        if state.newer is not None:
            loads += [WeightLoad(state.replica, state.newer)] if state.may_load else []
        elif state.version is not None:
            able.setdefault(state.version, {})[state.replica] = state.load
    draws: list[PromptQuota] = []
    begun: list[int] = []
    for version in sorted(able, reverse=True):
        # Groups of one version may take the room of another version.
        room = min(admit(version, begun), wanted - len(begun))
        shares = split_quota(room, able[version], limits)
        draws += [PromptQuota(replica, version, groups) for replica, groups in shares.items()]
        begun += [version] * sum(shares.values())
    drawing = {draw.replica for draw in draws}
    idle = (name for its in able.values() for name, load in its.items() if not load and name not in drawing)
    return Assignment(tuple(loads), tuple(draws), tuple(idle) if len(begun) < wanted else ())


def split_quota(room: int, loads: Mapping[str, int], limits: ReplicaLimits) -> dict[str, int]:
    """Return how many prompts each replica draws if `room` groups may start. `loads`: unfinished responses by replica.

    First each replica is filled to its share, the one with the highest load first: if there is too little work for all,
    the last replicas stay idle, which shows that there are too many. The rest goes prompt by prompt to the replica with
    the lowest load."""
    shares: dict[str, int] = {}
    for name in sorted(loads, key=lambda name: (-loads[name], name)):
        more = min(room, limits.share - ceil(loads[name] / limits.group_size))
        if more > 0:
            shares[name] = more
            room -= more
    places = [(load + limits.group_size * shares.get(name, 0), name) for name, load in loads.items()]
    heapify(places)
    while places and room > 0:
        load, name = places[0]
        if load + limits.group_size > limits.most * limits.group_size:
            heappop(places)
            continue
        heapreplace(places, (load + limits.group_size, name))
        shares[name] = shares.get(name, 0) + 1
        room -= 1
    return shares
