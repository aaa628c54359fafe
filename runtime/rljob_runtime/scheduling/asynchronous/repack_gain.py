"""Repack gain: predicts which merges save time, from the job's own measured engines.

A released source generates a full batch for the time that its tail would have lasted. The receiver's tail gets longer:
its steps have more responses, and moved prefixes are computed again. So a merge saves the time of both tails minus that
of the merged tail. If a step takes about as long for few responses as for many, that is nearly the shorter tail. If
each response adds its own share to a step, the gain is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from rljob_runtime.scheduling.asynchronous.repack import Merge, RepackRules, ReplicaLoad, plan_repack
from rljob_runtime.scheduling.lending.gain import CLEAR_GAIN, EngineSpeed, EngineTimeline
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished

HARDLY = 1.25
"""Largest ratio of a packed batch's step time to that of a single response."""


@dataclass(frozen=True)
class Tails:
    """What replicas generate at one check. `unfinished`: by replica; replicas that are not idle may be missing."""

    speed: EngineSpeed
    lengths: ExpectedLengths
    unfinished: Mapping[str, Sequence[Unfinished]]

    def pays(self, source: str, receiver: Sequence[str]) -> bool:
        """Evaluate `repack.Pays`. A gain within the prediction error does not pay."""
        apart = self._seconds(receiver, ()) + self._seconds((source,), ())
        return apart - self._seconds(receiver, (source,)) > CLEAR_GAIN * apart

    def _seconds(self, held: Sequence[str], come: Sequence[str]) -> float:
        """Return the seconds until an engine completes all of these.

        Which responses become long is unknown, so their quantiles are spread evenly, the longest responses last."""
        engine = EngineTimeline((self._spread(held), self._spread(come)), self.lengths, self.speed)
        last = 0.0
        while engine.due < inf:
            last = engine.due
            engine.stop(engine.next_run, last)
        return last

    def _spread(self, names: Sequence[str]) -> list[Unfinished]:
        """Spread quantiles per replica: a response's length does not depend on where it is generated."""
        return list(chain.from_iterable(map(self._shared, names)))

    def _shared(self, name: str) -> list[Unfinished]:
        its = sorted(self.unfinished[name], key=lambda one: (one.generated, one.prompt_tokens))
        return [replace(one, share=(place + 0.5) / len(its)) for place, one in enumerate(its)]


RepackPlan = Callable[[Sequence[ReplicaLoad], RepackRules, Tails], tuple[Merge, ...]]
"""A function that returns the merges to make now."""


def merges_that_pay(loads: Sequence[ReplicaLoad], rules: RepackRules, tails: Tails) -> tuple[Merge, ...]:
    """Plan with the largest batch of these engines, and only merges that save time."""
    return plan_repack(loads, within(rules, tails.speed), tails.pays)


def merges_that_fit(loads: Sequence[ReplicaLoad], rules: RepackRules, tails: Tails) -> tuple[Merge, ...]:
    """Plan all merges within the limits, as the paper does, for engines whose steps all take about as long."""
    return plan_repack(loads, rules, lambda source, receiver: True)


def within(rules: RepackRules, speed: EngineSpeed) -> RepackRules:
    """Lower `max_batch` to the largest batch that these engines decode with hardly more latency (B of Algorithm 1).

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
