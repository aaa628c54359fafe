"""The experience buffer of `mode: Asynchronous`: which groups an update takes, and how many more may be begun (Laminar
§3.1, §6).

A group is *open* from its launch until an update takes it: in flight, then ready. Its *staleness* is always that of
being trained on by the next update that has no batch yet: the updates taken before that one, less the step of the
group's weights. Every number called so in this module counts like that, whether its group is ready or in flight.

An optional bound on staleness is a date by which each group must be taken, and never a reason to throw one away: what
is thrown away for being late is what was long. A group of staleness s under the bound b has b - s updates to spare, its
*slack*. The dates can all be kept if, for every j >= 0,

    open groups of slack <= j  <=  (j + 1) * count

because an update takes `count` groups. `inflight_limit` begins no group that would break this.
`over_staleness_bound` and `sample` keep it over every update: a group that is left out loses one update of slack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rljob_api.spec_training import Sampler
from rljob_runtime.protocols.trajectory import PromptKey


@dataclass(frozen=True)
class Experience:
    """A ready group. `ready`: rises in the order in which groups became so. `spread`: standard deviation of its
    rewards; 0 teaches nothing. `staleness`: see the module."""

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
    """The `count` groups of the next update; () while there are fewer that may be used, or while it must wait.

    `in_flight`: the staleness of every group in flight. `seed`: another one for each update; only Uniform uses it.
    Groups that could not be taken in time after this update are in it, whatever the kind. Groups over the bound never
    are: `evict` names them.
    """
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
    """Whether the next update must not be made yet, whatever is ready: groups in flight could not all be taken in time
    after it. True exactly if for some j >= 0 more than j * `count` of them have slack <= j. So a single one that is at
    the bound is waited for.

    `in_flight`: the staleness of every group in flight. One that is over the bound already is not waited for.

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
    """How many groups may be begun now with weights of the staleness `weights`.

    `open_groups`: the staleness of every open group. At most `capacity` groups are open; under a bound at most
    `(bound + 1) * count`, and fewer where weights are not the newest. None with weights that are over the bound: newer
    ones must be taken first. While fewer than `count` groups are open, and the weights are within the bound, at least
    one may be begun: an update never waits for a group that is not admitted.

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
    """Of the capacity, in groups: where it begins, and between what it moves."""

    first: int
    least: int
    most: int

    @classmethod
    def of(cls, count: int, given: int | None) -> BufferLimits:
        """Updates take `count`. With a `given` capacity it does not move."""
        if given is not None:
            return cls(given, given, given)
        return cls(first=2 * count, least=count + _quarter(count), most=4 * count)

    def within(self, capacity: int) -> int:
        """The nearest to it that is allowed."""
        return max(self.least, min(capacity, self.most))


STARVED = 0.05
"""The trainer waited for a larger share of an update: more groups may be open."""
FULL = 0.8
"""Where an engine does more of what it can do at once, more groups would only wait for their turn there."""


def capacity_after(capacity: int, limits: BufferLimits, count: int, waited: float, left: int, fullness: float) -> int:
    """How many groups may be open after an update: a quarter of an update more if the trainer had to wait for this one
    although engines could do more at once; fewer if more than a quarter of an update lay ready and was not taken.

    `waited`: the share of its time in which the trainer stood for want of groups. `left`: ready groups that it did not
    take. `fullness`: the most that an engine did since the update before, of what its KV cache and its batch can hold.

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
    """The ready groups that no update may take any more: over the bound. Their prompts are to be drawn again. There
    are none unless the bound was lowered or an update was made against `over_staleness_bound`. A full buffer evicts
    nothing: it closes admission."""
    return tuple(one.prompt for one in ready if bound is not None and one.staleness > bound)


OLDEST_SHARE = 4
"""Of so many places by priority, one goes to the group that became ready first."""


def _ranked(kind: Sampler, ready: Iterable[Experience], count: int, seed: int) -> list[Experience]:
    """All of them, the most wanted first; the order does not hang on that of `ready`."""
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
    """Those that must be in this update: for every j so many of slack <= j that at most j * `count` such groups stay
    open, ready or in flight. Of those that would do, the first in `ranked`."""
    slacks = [bound - staleness for staleness in (*in_flight, *(one.staleness for one in ranked))]
    chosen: dict[PromptKey, Experience] = {}
    for date in sorted({slack for slack in slacks if slack >= 0}):
        due = sum(0 <= slack <= date for slack in slacks)
        missing = max(0, due - date * count - len(chosen))
        candidates = (one for one in ranked if bound - one.staleness <= date and one.prompt not in chosen)
        chosen |= {one.prompt: one for one in islice(candidates, missing)}
    return chosen
