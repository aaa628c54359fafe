"""Tail batching (RollPacker §3): short rounds race, and what loses is made up for in long ones.

A short round launches ⌈ηP·P0⌉ prompts × ⌈ηR·R0⌉ responses and keeps the first R0 responses of a prompt and the first P0
whole prompts; `round.Round` is that race. Prompts that lose it wait in the long-prompt queue. When the queue holds P0
of them, the next round is long: exactly P0 × R0, all of which are waited for. The last rounds of a job are long too, as
many as it takes to empty the queue: a job then has trained on the very prompts that plain rounds would have taken.

Nothing of a prompt that lost is kept but its key, (epoch, index): its responses are generated anew by the weights of
its long round, so that every group is of one version and not chosen by its length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round import RoundShape


@dataclass(frozen=True)
class Factors:
    """ηP and ηR: how many prompts and responses a short round launches for each that it keeps. Both at least 1."""

    prompts: float = 1.25
    responses: float = 1.25

    def __post_init__(self) -> None:
        if not (self.prompts >= 1 and self.responses >= 1):
            raise ValueError(f"factors must be at least 1, not {self.prompts} and {self.responses}")


@dataclass(frozen=True)
class Opening:
    """The next round: its shape, and how many of its prompts come from the head of the queue. The rest is drawn by the
    cursor."""

    shape: RoundShape
    queued: int

    @property
    def fresh(self) -> int:
        """Prompts to draw by the cursor."""
        return self.shape.prompts - self.queued


def next_round(
    prompts_per_round: int, responses_per_prompt: int, factors: Factors | None, queued: int, rounds_left: int
) -> Opening:
    """What the next of `rounds_left` rounds launches, with `queued` prompts waiting. `factors` is None without tail
    batching: no round is short then, and the first ones take what a former setting left in the queue.

    >>> next_round(128, 8, Factors(), queued=100, rounds_left=50).shape
    RoundShape(kind=<RoundKind.SHORT: 'Short'>, prompts=160, responses=10, groups=128, group_size=8)
    >>> opening = next_round(128, 8, Factors(), queued=130, rounds_left=50)
    >>> str(opening.shape.kind), opening.queued
    ('Long', 128)
    """
    groups, group_size = prompts_per_round, responses_per_prompt
    if factors is not None and queued < groups:
        launched = ceil_product(factors.prompts, groups)
        # What may wait after a short round must fit into the rounds that are then left.
        if queued + launched - groups <= (rounds_left - 1) * groups:
            responses = ceil_product(factors.responses, group_size)
            return Opening(RoundShape(RoundKind.SHORT, launched, responses, groups, group_size), queued=0)
    kind = RoundKind.LONG if queued else RoundKind.PLAIN
    return Opening(RoundShape(kind, groups, group_size, groups, group_size), queued=min(queued, groups))


def replacements(
    kind: RoundKind, queue: Sequence[PromptKey], drawn: Collection[PromptKey], count: int
) -> tuple[PromptKey, ...]:
    """Up to `count` prompts of the queue to launch in place of filtered ones, oldest first: a long round takes long
    prompts while there are any, a short one none."""
    if kind is RoundKind.SHORT:
        return ()
    return tuple([prompt for prompt in queue if prompt not in drawn][:count])


def queue_after(
    queue: Sequence[PromptKey], drawn: Collection[PromptKey], requeued: Sequence[PromptKey]
) -> tuple[PromptKey, ...]:
    """The queue after a round, oldest first: without what the round drew, and with what lost its race at the end."""
    return (*(prompt for prompt in queue if prompt not in drawn), *requeued)


def ceil_product(factor: float, count: int) -> int:
    """⌈factor · count⌉ by the decimal that was written: 1.1 · 10 is 11, and not a little more."""
    return ceil(Fraction(repr(float(factor))) * count)
