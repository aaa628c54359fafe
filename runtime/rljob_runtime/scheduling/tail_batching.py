"""Tail batching: short rounds launch more than they keep, long rounds train on the rest (RollPacker §3).

A short round launches ⌈ηP·P0⌉ prompts × ⌈ηR·R0⌉ responses and keeps the first R0 responses of a prompt and the first P0
complete prompts (`round.Round`). Prompts that lose wait in the long-prompt queue. When the queue holds P0 prompts, the
next round is long: exactly P0 × R0, and it waits for all of them. The last rounds of a job are long too, as many as the
queue needs: a job trains on exactly the prompts that plain rounds would have trained on.

Each of several sources has its places in a round, and its prompts race for these only. The further prompts of a short
round come from the sources with the fewest waiting prompts for their share, so that the queue has the shares too. A
long round takes each source's prompts from the queue first, and draws what the queue lacks of a source.

Of a prompt that lost only its key, (epoch, index), is kept. The weights of its long round generate all its responses
again, so every group has one version and is not selected by length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_plan import RoundShape, SourceShape


@dataclass(frozen=True)
class Factors:
    """ηP and ηR: prompts and responses that a short round launches for each that it keeps. Both at least 1."""

    prompts: float = 1.25
    responses: float = 1.25

    def __post_init__(self) -> None:
        if not (self.prompts >= 1 and self.responses >= 1):
            raise ValueError(f"factors must be at least 1, not {self.prompts} and {self.responses}")


@dataclass(frozen=True)
class Opening:
    """The next round: its shape, and how many of its prompts come from the head of the queue, by source.

    The cursor draws the rest."""

    shape: RoundShape
    taken: Mapping[str, int]

    @property
    def queued(self) -> int:
        """Prompts from the queue."""
        return sum(self.taken.values())

    @property
    def fresh(self) -> int:
        """Prompts to draw by the cursor."""
        return self.shape.prompts - self.queued

    @property
    def fresh_of(self) -> dict[str, int]:
        """Prompts to draw by the cursor, by source."""
        return {race.name: race.prompts - self.taken[race.name] for race in self.shape.races}


def next_round(
    prompts_per_round: int, responses_per_prompt: int, factors: Factors | None, queued: int, rounds_left: int
) -> Opening:
    """Return what the next of `rounds_left` rounds launches, with `queued` prompts waiting.

    `factors` is None without tail batching: no round is short then, and the first ones take prompts that a former
    setting left in the queue.

    >>> next_round(128, 8, Factors(), queued=100, rounds_left=50).shape
    RoundShape(kind=<RoundKind.SHORT: 'Short'>, prompts=160, responses=10, groups=128, group_size=8, sources=())
    >>> opening = next_round(128, 8, Factors(), queued=130, rounds_left=50)
    >>> str(opening.shape.kind), opening.queued
    ('Long', 128)
    """
    later = (rounds_left - 1) * prompts_per_round
    return next_round_of({"": prompts_per_round}, responses_per_prompt, factors, {"": queued}, {"": later})


def next_round_of(
    places: Mapping[str, int],
    responses_per_prompt: int,
    factors: Factors | None,
    queued: Mapping[str, int],
    later: Mapping[str, int],
) -> Opening:
    """Return what the next round launches, with `places` for each source.

    `queued`: prompts that wait, by source. `later`: the least places of each source in the rounds after this one; what
    waits must fit into them."""
    group_size, groups = responses_per_prompt, sum(places.values())
    waiting = {name: queued.get(name, 0) for name in places}
    if factors is not None and sum(waiting.values()) < groups:
        more = _further(places, waiting, later, ceil_product(factors.prompts, groups) - groups)
        if more is not None:
            launched = {name: count + more[name] for name, count in places.items()}
            responses = ceil_product(factors.responses, group_size)
            return Opening(_shape(RoundKind.SHORT, launched, responses, places, group_size), dict.fromkeys(places, 0))
    taken = {name: min(waiting[name], count) for name, count in places.items()}
    kind = RoundKind.LONG if any(taken.values()) else RoundKind.PLAIN
    return Opening(_shape(kind, places, group_size, places, group_size), taken)


def _further(
    places: Mapping[str, int], waiting: Mapping[str, int], later: Mapping[str, int], number: int
) -> dict[str, int] | None:
    """Return how many prompts a short round launches beyond its places, by source; None if the queue would be too long.

    The queue after the round must fit into the remaining rounds."""
    more = dict.fromkeys(places, 0)
    if any(waiting[name] > later[name] for name in places):
        return None
    while (left := number - sum(more.values())) > 0:
        room = [name for name, count in places.items() if count and waiting[name] + more[name] < later[name]]
        if not room:
            return None
        name = min(room, key=lambda name: Fraction(waiting[name] + more[name] + 1, places[name]))
        more[name] += min(left, later[name] - waiting[name] - more[name]) if len(room) == 1 else 1
    return more


def _shape(
    kind: RoundKind, launched: Mapping[str, int], responses: int, places: Mapping[str, int], group_size: int
) -> RoundShape:
    sources = tuple(SourceShape(name, launched[name], count) for name, count in places.items() if name)
    return RoundShape(kind, sum(launched.values()), responses, sum(places.values()), group_size, sources)


def from_queue(queue: Sequence[PromptKey], counts: Mapping[str, int]) -> tuple[PromptKey, ...]:
    """Return the oldest queued prompts of each source, as many as `counts` says, in the order of the queue."""
    left, taken = dict(counts), []
    for prompt in queue:
        if left.get(prompt.source, 0) > 0:
            left[prompt.source] -= 1
            taken.append(prompt)
    return tuple(taken)


def replacements(
    kind: RoundKind, queue: Sequence[PromptKey], drawn: Collection[PromptKey], counts: Mapping[str, int]
) -> tuple[PromptKey, ...]:
    """Return queued prompts that replace filtered ones of their source, oldest first: at most `counts` of each.

    A short round takes none."""
    if kind is RoundKind.SHORT:
        return ()
    return from_queue([prompt for prompt in queue if prompt not in drawn], counts)


def queue_after(
    queue: Sequence[PromptKey], drawn: Collection[PromptKey], requeued: Sequence[PromptKey]
) -> tuple[PromptKey, ...]:
    """Return the queue after a round, oldest first: without the drawn prompts, with the requeued ones at the end."""
    return (*(prompt for prompt in queue if prompt not in drawn), *requeued)


def ceil_product(factor: float, count: int) -> int:
    """Return ⌈factor · count⌉ of the decimal as written: 1.1 · 10 is 11."""
    return ceil(Fraction(repr(float(factor))) * count)
