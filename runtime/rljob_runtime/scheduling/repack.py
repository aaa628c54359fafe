"""Which replicas are emptied onto which others, so that they take new weights and prompts (Laminar §5, Algorithm 1).

A replica in its long tail generates few trajectories, and decoding is bound by memory: a batch of few costs almost what
a batch of many costs. So replicas that are idle in this sense, and of one weight version, are packed onto as few as
possible, where that saves time by what is known of the engines (`repack_gain`). Departures from the algorithm as
printed: a replica that receives is not emptied by the same plan (as printed, a -> b and then b -> c sends a's
trajectories to a replica that is just being emptied), nor does a replica take part in a second plan while moves of the
first are under way; what a receiver can hold is judged by the tokens it is expected to come to, not by those it holds
now; and KV use that rises by no more than was generated does not count as rising (as printed, the last few of a replica
hide it until one of them ends).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaLoad:
    """What a replica does now. `trajectories`: unfinished ones, what would have to move; of these the engine has not
    admitted `waiting` yet. `tokens`: in its KV cache now; `expected_tokens`: at the peak that its trajectories are
    expected to come to; `kv_tokens`: all that it can hold. `kv_before`: `tokens` at the look before, None if there was
    none; `generated`: what its trajectories have generated since then. `receives`: false if nothing may be moved to it,
    because it drains or loads. `moving`: a move to it or from it is under way, so that what it will hold is not what it
    holds."""

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
        """The most tokens that it will hold, by what is known."""
        return max(self.tokens, self.expected_tokens)


@dataclass(frozen=True)
class RepackRules:
    """`kv_cache_threshold`: the share of its KV cache up to which a replica may be filled, above 0 and at most 1.
    `max_batch`: so many trajectories decode at once with hardly more latency than few."""

    kv_cache_threshold: float
    max_batch: int

    def __post_init__(self) -> None:
        if not 0 < self.kv_cache_threshold <= 1:
            raise ValueError(f"kv_cache_threshold is {self.kv_cache_threshold}; it must be above 0 and at most 1")
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; it must be at least 1")


@dataclass(frozen=True)
class Merge:
    """All unfinished trajectories of `source` go to `destination`, and `source` is released."""

    source: str
    destination: str


Pays = Callable[[str, Sequence[str]], bool]
"""Whether to merge a source with replicas that are one by then saves time."""


@dataclass
class _Bin:
    """A replica that may receive, with all that the plan has given it. `names`: its own first."""

    load: ReplicaLoad
    trajectories: int
    peak: int
    names: list[str]

    def holds(self, more: ReplicaLoad, rules: RepackRules) -> bool:
        """Whether it stays within the limits with all of `more`."""
        return (
            self.trajectories + more.trajectories <= rules.max_batch
            and self.peak + more.peak <= rules.kv_cache_threshold * self.load.kv_tokens
        )


def plan_repack(loads: Sequence[ReplicaLoad], rules: RepackRules, pays: Pays) -> tuple[Merge, ...]:
    """The merges to make now, in any order; names must differ. Every source is idle and is emptied whole onto one idle
    replica of its version, which is not a source itself and has room for all that it is given; and it `pays`. Takes
    O(n²) for n idle replicas of a version, and asks for each once at most."""
    idle = [load for load in loads if is_idle(load, rules)]
    return tuple(
        merge
        for version in sorted({load.version for load in idle})
        for merge in _pack([load for load in idle if load.version == version], rules, pays)
    )


def is_idle(load: ReplicaLoad, rules: RepackRules) -> bool:
    """Whether a replica is in its tail: KV use below the threshold and not rising since the last look but by what was
    generated, nothing waiting, no move under way, and fewer trajectories than it could decode at once. With no
    trajectory it has nothing to move, and takes new weights by itself."""
    return (
        not load.moving
        and 0 < load.trajectories < rules.max_batch
        and load.waiting == 0
        and load.tokens < rules.kv_cache_threshold * load.kv_tokens
        and load.kv_before is not None
        and load.tokens <= load.kv_before + load.generated
    )


def _pack(idle: Iterable[ReplicaLoad], rules: RepackRules, pays: Pays) -> list[Merge]:
    """Best-Fit, the least loaded source first: it goes where it leaves least room, which keeps room for larger ones."""
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
