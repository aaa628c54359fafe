"""Repack: selects replicas to empty onto others, so that they take new weights and prompts (Laminar §5, Algorithm 1).

A replica in its long tail generates few trajectories. Decoding is bound by memory, so a small batch costs almost as
much as a large one. Idle replicas of one weight version are packed onto as few as possible, if that saves time on the
measured engines (`repack_gain`).

Three departures from the printed algorithm. (1) A receiver is not emptied by the same plan, and takes part in no
further plan while moves are in progress: as printed, a -> b and b -> c sends a's trajectories to a replica that is
being emptied. (2) A receiver's capacity is compared with the expected final tokens, not with the present ones. (3) KV
use that rises by no more than the generated tokens does not count as rising: as printed, the last few trajectories of a
replica prevent repack until one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaLoad:
    """The present load of a replica.

    `trajectories`: unfinished ones, which would move; `waiting` of them are not admitted by the engine yet. `tokens`:
    in its KV cache now; `expected_tokens`: at the expected peak of its trajectories; `kv_tokens`: capacity.
    `kv_before`: `tokens` at the previous check, None without one; `generated`: tokens since then. `receives`: False if
    nothing may move to it, because it drains or loads. `moving`: a move to it or from it is in progress, so its final
    load is unknown."""

    name: str
    version: int
    trajectories: int
    waiting: int
    tokens: int
    expected_tokens: int
    kv_tokens: int
    kv_before: int | None
    receives: bool = True
    generated: int = 0
    moving: bool = False

    @property
    def peak(self) -> int:
        """The most tokens that it is expected to hold."""
        return max(self.tokens, self.expected_tokens)


@dataclass(frozen=True)
class RepackRules:
    """`kv_cache_threshold`: share of its KV cache up to which a replica may be filled, above 0 and at most 1.

    `max_batch`: number of trajectories that decode with hardly more latency than few."""

    kv_cache_threshold: float
    max_batch: int

    def __post_init__(self) -> None:
        if not 0 < self.kv_cache_threshold <= 1:
            raise ValueError(f"kv_cache_threshold is {self.kv_cache_threshold}; it must be above 0 and at most 1")
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; it must be at least 1")


@dataclass(frozen=True)
class Merge:
    """A move of all unfinished trajectories of `source` to `destination`; `source` becomes free."""

    source: str
    destination: str


Pays = Callable[[str, Sequence[str]], bool]
"""Predicate: does merging a source with replicas that are already merged save time?"""


@dataclass
class _Bin:
    """A replica that may receive, with everything planned for it. `names`: its own first."""

    load: ReplicaLoad
    trajectories: int
    peak: int
    names: list[str]

    def holds(self, more: ReplicaLoad, rules: RepackRules) -> bool:
        """Check whether it stays within the limits with all of `more`."""
        return (
            self.trajectories + more.trajectories <= rules.max_batch
            and self.peak + more.peak <= rules.kv_cache_threshold * self.load.kv_tokens
        )


REMEMBERED_LENGTHS = 2048
"""Number of latest complete responses from which repack predicts lengths."""


def is_due(weights_published: bool, seconds: float, interval: float) -> bool:
    """Check whether to plan a repack: after new weights, or `interval` seconds after the last plan."""
    return weights_published or seconds >= interval


def has_work(requested: int, admitted: int) -> bool:
    """Check whether a released replica would find prompts: groups are requested, and the buffer admits some."""
    return requested > 0 and admitted > 0


def plan_repack(loads: Sequence[ReplicaLoad], rules: RepackRules, pays: Pays) -> tuple[Merge, ...]:
    """Return the merges to make now, in any order; names must be distinct.

    Every source is idle and moves completely to one idle replica of its version. The receiver is not a source, has
    room, and the merge `pays`. Takes O(n²) for n idle replicas of a version and calls `pays` at most once per source.
    """
    idle = [load for load in loads if is_idle(load, rules)]
    return tuple(
        merge
        for version in sorted({load.version for load in idle})
        for merge in _pack([load for load in idle if load.version == version], rules, pays)
    )


def is_idle(load: ReplicaLoad, rules: RepackRules) -> bool:
    """Check whether a replica is in its tail.

    KV use is below the threshold and rose by no more than the generated tokens, nothing waits, no move is in progress,
    and fewer trajectories run than could decode simultaneously. A replica without trajectories has nothing to move and
    loads new weights automatically."""
    return (
        not load.moving
        and 0 < load.trajectories < rules.max_batch
        and load.waiting == 0
        and load.tokens < rules.kv_cache_threshold * load.kv_tokens
        and load.kv_before is not None
        and load.tokens <= load.kv_before + load.generated
    )


def _pack(idle: Iterable[ReplicaLoad], rules: RepackRules, pays: Pays) -> list[Merge]:
    """Pack by Best-Fit, the source with the lowest load first.

    It goes where it leaves the least room, which keeps room for larger sources."""
    ascending = sorted(idle, key=lambda load: (load.tokens, load.trajectories, load.name))
    bins = {load.name: _Bin(load, load.trajectories, load.peak, [load.name]) for load in ascending if load.receives}
    merges: list[Merge] = []
    for source in ascending:
        if any(merge.destination == source.name for merge in merges):
            continue
        fitting = [one for name, one in bins.items() if name != source.name and one.holds(source, rules)]
        if not fitting:
            continue
        best = max(fitting, key=lambda one: (one.peak + source.peak) / one.load.kv_tokens)
        if not pays(source.name, best.names):
            continue
        best.trajectories += source.trajectories
        best.peak += source.peak
        best.names.append(source.name)
        bins.pop(source.name, None)
        merges.append(Merge(source.name, best.load.name))
    return merges
