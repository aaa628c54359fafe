"""Outcome: what a job did, as every system tells it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group in an update. Versions count the updates that came before."""

    number: int
    version: int
    """That generated it; of a mixed one the first."""
    staleness: int
    """Updates between that version and the one that trained on it."""
    inherent: int
    """The same when its last response ended (Laminar §6)."""


@dataclass(frozen=True)
class Update:
    """An update that ended, with its prompts' tokens."""

    end: float
    tokens: int
    groups: tuple[TrainedGroup, ...]
    waited: float
    """Seconds in which the trainer stood before it for want of groups."""


@dataclass(frozen=True)
class Outcome:
    """The updates after the warm-up, and what replicas did meanwhile. `begin`: when the warm-up ended."""

    begin: float
    updates: tuple[Update, ...]
    generated_tokens: int = 0
    busy_share: float = math.nan
    """Share of the replicas' seconds in which an engine had something to do."""
    kv_use: float = math.nan
    """Mean share of the KV cache, over replicas and looks."""
    latencies: Sequence[float] = field(default=(), repr=False)
    """Seconds from the launch of a response to its end."""
    preemptions: int = 0
    releases: int = 0
    """Replicas that were released by repack."""
    moved: int = 0
    """Responses that went to another replica."""
    recomputed_share: float = 0.0
    """Share of the replicas' seconds spent on contexts that are computed again after an interruption or a move."""

    @property
    def seconds(self) -> float:
        """Seconds of the updates."""
        return self.updates[-1].end - self.begin

    @property
    def round_seconds(self) -> float:
        """Mean seconds of one update and what precedes it."""
        return self.seconds / len(self.updates)

    @property
    def throughput(self) -> float:
        """Tokens trained on, with prompts, a second (Laminar §8, Metrics)."""
        return sum(update.tokens for update in self.updates) / self.seconds

    @property
    def generation(self) -> float:
        """Tokens generated a second."""
        return self.generated_tokens / self.seconds

    @property
    def waiting_share(self) -> float:
        """Share of the time in which the trainer waited for groups."""
        return sum(update.waited for update in self.updates) / self.seconds

    @property
    def mean_latency(self) -> float:
        """Mean latency of a response in seconds; NaN where none was kept."""
        return fmean(self.latencies) if self.latencies else math.nan

    def staleness(self, *, inherent: bool = False) -> Staleness:
        """Over all groups trained on."""
        return Staleness(
            Counter(one.inherent if inherent else one.staleness for update in self.updates for one in update.groups)
        )


@dataclass(frozen=True)
class Staleness:
    """How often each value was seen."""

    counts: Counter[int]

    @property
    def mean(self) -> float:
        return sum(value * count for value, count in self.counts.items()) / self.counts.total()

    @property
    def worst(self) -> int:
        return max(self.counts)

    def share_to(self, value: int) -> float:
        """Return the share of the groups whose staleness is at most `value`."""
        return sum(count for seen, count in self.counts.items() if seen <= value) / self.counts.total()

    def quantile(self, share: float) -> int:
        """Return the least value that at least `share` of the groups do not exceed."""
        return next(value for value in sorted(self.counts) if self.share_to(value) >= share - 1e-12)
