"""Experience buffer: selects the groups of an update and bounds the groups in flight (Laminar §3.1, §6).

A group is *open* from its launch until an update takes it: in flight, then ready. Its *staleness* is that of training
on it in the next update that has no batch yet: the number of updates taken before that one, minus the step of the
group's weights. The definition is the same for ready groups and groups in flight.

An optional bound on staleness is a deadline for each group, not a reason to discard late groups: late groups are the
long ones. A group of staleness s under the bound b has b - s updates to spare, its *slack*. All deadlines can be met
if, for every j >= 0,

    open groups of slack <= j  <=  (j + 1) * count

because an update takes `count` groups. `inflight_limit` admits no group that would break this. `over_staleness_bound`
and `sample` keep it over every update: a group that is left out loses one update of slack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rljob_api.spec.training import Sampler
from rljob_runtime.protocols.trajectory import PromptKey


@dataclass(frozen=True)
class Experience:
    """A ready group.

    `ready` rises in the order in which groups became ready. `spread`: standard deviation of its rewards; 0 means no
    training signal. `staleness`: see the module."""

    prompt: PromptKey
    ready: int
    staleness: int
    spread: float


def sample(
    kind: Sampler,
    ready: Sequence[Experience],
    count: int,
    seed: int,
    bound: int | None,
    in_flight: Iterable[int],
) -> tuple[PromptKey, ...]:
    """Select the `count` groups of the next update; () if too few are usable, or if the update must wait.

    `in_flight`: the staleness of every group in flight. `seed`: a different one for each update; only Uniform uses it.
    Groups whose deadline would pass after this update are included, whatever the sampler. Groups over the bound never
    are: `evict` returns them."""
    chosen = _ranked(kind, ready, count, seed)
    if bound is not None:
        in_flight = list(in_flight)
        if over_staleness_bound(in_flight, bound, count):
            return ()
        usable = [one for one in chosen if one.staleness <= bound]
        urgent = _urgent(usable, in_flight, bound, count)
        chosen = [*urgent.values(), *(one for one in usable if one.prompt not in urgent)]
    return tuple(one.prompt for one in chosen[:count]) if len(chosen) >= count else ()


def over_staleness_bound(in_flight: Iterable[int], bound: int | None, count: int) -> bool:
    """Check whether the next update must wait for groups in flight.

    It must if for some j >= 0 more than j * `count` of them have slack <= j, because those could not all be taken in
    time after it. So an update waits for a single group at the bound. `in_flight`: the staleness of every group in
    flight. A group that is over the bound already does not count.

    >>> over_staleness_bound([0, 1], bound=2, count=1), over_staleness_bound([1, 1], bound=2, count=1)
    (False, True)
    >>> over_staleness_bound([2], bound=2, count=8)
    True
    """
    if bound is None:
        return False
    slacks = sorted(bound - staleness for staleness in in_flight if staleness <= bound)
    return any(place >= slack * count for place, slack in enumerate(slacks))


def inflight_limit(open_groups: Iterable[int], weights: int, capacity: int, count: int, bound: int | None) -> int:
    """Return how many groups may start now with weights of the staleness `weights`.

    `open_groups`: the staleness of every open group. At most `capacity` groups are open; under a bound at most `(bound
    + 1) * count`, and fewer if the weights are not the newest. With weights over the bound the answer is 0: newer ones
    must be loaded first. While fewer than `count` groups are open and the weights are within the bound, at least one
    may start: an update never waits for a group that cannot be admitted.

    >>> [inflight_limit([], weights, capacity=100, count=8, bound=2) for weights in (0, 2)]
    [24, 8]
    """
    opened = list(open_groups)
    room = max(0, capacity - len(opened))
    if bound is None:
        return room
    if weights > bound:
        return 0
    slacks = sorted(bound - staleness for staleness in opened if staleness <= bound)
    own = bound - max(0, weights)
    for date in {own, *(slack for slack in slacks if slack > own)}:
        room = min(room, (date + 1) * count - sum(slack <= date for slack in slacks))
    return max(0, room)


@dataclass(frozen=True)
class BufferLimits:
    """Limits of the buffer's capacity in groups: the initial value, the minimum and the maximum."""

    first: int
    least: int
    most: int

    @classmethod
    def of(cls, count: int, given: int | None) -> BufferLimits:
        """Derive the limits for updates of `count` groups. A `given` capacity is fixed."""
        if given is not None:
            return cls(given, given, given)
        return cls(first=2 * count, least=count + _quarter(count), most=4 * count)

    def within(self, capacity: int) -> int:
        """Clamp a capacity to the limits."""
        return max(self.least, min(capacity, self.most))


STARVED = 0.05
"""Share of an update's time that the trainer may wait for groups before the capacity grows."""
FULL = 0.8
"""Engine fullness above which a larger capacity does not help: further groups would only queue there."""


def capacity_after(capacity: int, limits: BufferLimits, count: int, waited: float, left: int, fullness: float) -> int:
    """Return the capacity after an update.

    It grows by a quarter of an update if the trainer waited although engines had room. It shrinks if more than a
    quarter of an update stayed ready and unused. `waited`: share of the update's time that the trainer waited for
    groups. `left`: ready groups that the update did not take. `fullness`: the highest engine load since the update
    before, as a share of KV cache and batch size.

    >>> limits = BufferLimits.of(8, None)
    >>> [capacity_after(16, limits, 8, *seen) for seen in ((0.5, 0, 0.1), (0.5, 0, 0.9), (0.0, 8, 0.1))]
    [18, 16, 13]
    """
    quarter = _quarter(count)
    if waited > STARVED:
        wanted = capacity + quarter if fullness <= FULL else capacity
    else:
        wanted = capacity - max(0, left - quarter) // 2
    return limits.within(wanted)


def _quarter(count: int) -> int:
    return -(-count // 4)


def evict(ready: Iterable[Experience], bound: int | None) -> tuple[PromptKey, ...]:
    """Return the ready groups over the bound; their prompts are to be requeued.

    There are none unless the bound was lowered or an update was made against `over_staleness_bound`. A full buffer
    evicts nothing: it stops admission."""
    return tuple(one.prompt for one in ready if bound is not None and one.staleness > bound)


OLDEST_SHARE = 4
"""Period of the oldest group: of this many places by priority, one goes to the group that became ready first."""


def _ranked(kind: Sampler, ready: Iterable[Experience], count: int, seed: int) -> list[Experience]:
    """Rank groups, best first. The result does not depend on the order of `ready`."""
    oldest = sorted(ready, key=lambda one: (one.ready, one.prompt))
    match kind:
        case Sampler.FIFO:
            return oldest
        case Sampler.PRIORITY:
            share = -(-count // OLDEST_SHARE)
            return oldest[:share] + sorted(oldest[share:], key=lambda one: -one.spread)
        case Sampler.STALENESS_AWARE:
            return sorted(oldest, key=lambda one: -one.staleness)
        case Sampler.UNIFORM:
            return sorted(oldest, key=lambda one: _lot(seed, one.prompt))


def _lot(seed: int, prompt: PromptKey) -> bytes:
    return hashlib.blake2b(f"{seed}/{prompt}".encode(), digest_size=8).digest()


def _urgent(
    ranked: Sequence[Experience], in_flight: Iterable[int], bound: int, count: int
) -> dict[PromptKey, Experience]:
    """Return the groups that this update must take to keep the deadlines.

    For every j, at most j * `count` groups of slack <= j may stay open, ready or in flight. Among sufficient choices
    the first in `ranked` win."""
    slacks = [bound - staleness for staleness in (*in_flight, *(one.staleness for one in ranked))]
    chosen: dict[PromptKey, Experience] = {}
    for date in sorted({slack for slack in slacks if slack >= 0}):
        due = sum(0 <= slack <= date for slack in slacks)
        missing = max(0, due - date * count - len(chosen))
        candidates = (one for one in ranked if bound - one.staleness <= date and one.prompt not in chosen)
        chosen |= {one.prompt: one for one in islice(candidates, missing)}
    return chosen
