"""Which merges of repack save time: predicted from what the job's engines were seen to do.

A source that is released generates a full batch for as long as its tail would have lasted. The receiver's tail becomes
longer: its steps have more responses, and what moves is computed anew. So a merge saves the time of both tails less
that of the one that comes of them. Where a step takes about as long for few responses as for many, that is nearly the
shorter tail. Where each response adds its own share to a step, it is less than nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from rljob_runtime.scheduling.lending.gain import CLEAR_GAIN, EngineSpeed, EngineTimeline
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished
from rljob_runtime.scheduling.repack import Merge, RepackRules, ReplicaLoad, plan_repack

HARDLY = 1.25
"""A step of the largest batch that is packed takes at most so many times as long as one of a single response."""


@dataclass(frozen=True)
class Tails:
    """What replicas generate at one look. `unfinished`: by replica; those that are not idle may be missing."""

    speed: EngineSpeed
    lengths: ExpectedLengths
    unfinished: Mapping[str, Sequence[Unfinished]]

    def pays(self, source: str, receiver: Sequence[str]) -> bool:
        """See `repack.Pays`. A gain within the error of predictions does not."""
        apart = self._seconds(receiver, ()) + self._seconds((source,), ())
        return apart - self._seconds(receiver, (source,)) > CLEAR_GAIN * apart

    def _seconds(self, held: Sequence[str], come: Sequence[str]) -> float:
        """Until an engine has generated all of these to their ends. Which of them become long is not known, so their
        shares are as far apart as they can be, those that have come furthest last."""
        engine = EngineTimeline((self._spread(held), self._spread(come)), self.lengths, self.speed)
        last = 0.0
        while engine.due < inf:
            last = engine.due
            engine.end()
        return last

    def _spread(self, names: Sequence[str]) -> list[Unfinished]:
        """Each replica's by itself: a response becomes as long wherever it is generated."""
        return list(chain.from_iterable(map(self._shared, names)))

    def _shared(self, name: str) -> list[Unfinished]:
        its = sorted(self.unfinished[name], key=lambda one: (one.generated, one.prompt_tokens))
        return [replace(one, share=(place + 0.5) / len(its)) for place, one in enumerate(its)]


RepackPlan = Callable[[Sequence[ReplicaLoad], RepackRules, Tails], tuple[Merge, ...]]
"""The merges to make now."""


def merges_that_pay(loads: Sequence[ReplicaLoad], rules: RepackRules, tails: Tails) -> tuple[Merge, ...]:
    """Plan with these engines' own largest batch, and only what saves time."""
    return plan_repack(loads, within(rules, tails.speed), tails.pays)


def merges_that_fit(loads: Sequence[ReplicaLoad], rules: RepackRules, tails: Tails) -> tuple[Merge, ...]:
    """Plan whatever fits within the limits, as the paper does, for engines whose steps all take about as long."""
    return plan_repack(loads, rules, lambda source, receiver: True)


def within(rules: RepackRules, speed: EngineSpeed) -> RepackRules:
    """The rules with the largest batch that these engines decode with hardly more latency, where that is smaller
    (B of Algorithm 1).

    >>> from rljob_runtime.perf_model.latency_model import LatencyModel
    >>> flat = LatencyModel(((1, 0.010), (32, 0.010), (64, 0.020)), 0, 0, 0, 0)
    >>> within(RepackRules(0.9, 64), EngineSpeed(flat, 1, 64)).max_batch
    40
    """
    most = HARDLY * speed.latency.base(1) * (1 + 1e-9)
    fewest, too_many = 1, rules.max_batch + 1
    while too_many - fewest > 1:
        middle = (fewest + too_many) // 2
        fewest, too_many = (middle, too_many) if speed.latency.base(middle) <= most else (fewest, middle)
    return replace(rules, max_batch=fewest)
