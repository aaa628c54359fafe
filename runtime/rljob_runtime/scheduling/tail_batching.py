"""Tail batching: short rounds launch more than they keep, long rounds train on the rest (RollPacker §3).

A short round launches ⌈ηP·P0⌉ prompts × ⌈ηR·R0⌉ responses and keeps the first R0 responses of a prompt and the first P0
complete prompts (`round.Round`). Prompts that lose wait in the long-prompt queue. When the queue holds P0 prompts, the
next round is long: exactly P0 × R0, and it waits for all of them. The last rounds of a job are long too, as many as the
queue needs: a job trains on exactly the prompts that plain rounds would have trained on.

Of a prompt that lost only its key, (epoch, index), is kept. The weights of its long round generate all its responses
again, so every group has one version and is not selected by length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_plan import RoundShape


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
    """The next round: its shape, and how many of its prompts come from the head of the queue.

    The cursor draws the rest."""

    shape: RoundShape
    queued: int

    @property
    def fresh(self) -> int:
        """Prompts to draw by the cursor."""
        return self.shape.prompts - self.queued


def next_round(
    prompts_per_round: int, responses_per_prompt: int, factors: Factors | None, queued: int, rounds_left: int
) -> Opening:
    """Return what the next of `rounds_left` rounds launches, with `queued` prompts waiting.

    `factors` is None without tail batching: no round is short then, and the first ones take prompts that a former
    setting left in the queue.

    >>> next_round(128, 8, Factors(), queued=100, rounds_left=50).shape
    RoundShape(kind=<RoundKind.SHORT: 'Short'>, prompts=160, responses=10, groups=128, group_size=8)
    >>> opening = next_round(128, 8, Factors(), queued=130, rounds_left=50)
    >>> str(opening.shape.kind), opening.queued
    ('Long', 128)
    """
    groups, group_size = prompts_per_round, responses_per_prompt
    if factors is not None and queued < groups:
        launched = ceil_product(factors.prompts, groups)
        # The queue after a short round must fit into the remaining rounds.
        if queued + launched - groups <= (rounds_left - 1) * groups:
            responses = ceil_product(factors.responses, group_size)
            return Opening(RoundShape(RoundKind.SHORT, launched, responses, groups, group_size), queued=0)
    kind = RoundKind.LONG if queued else RoundKind.PLAIN
    return Opening(RoundShape(kind, groups, group_size, groups, group_size), queued=min(queued, groups))


def replacements(
    kind: RoundKind, queue: Sequence[PromptKey], drawn: Collection[PromptKey], count: int
) -> tuple[PromptKey, ...]:
    """Return up to `count` queued prompts that replace filtered ones, oldest first. A short round takes none."""
    if kind is RoundKind.SHORT:
        return ()
    return tuple([prompt for prompt in queue if prompt not in drawn][:count])


def queue_after(
    queue: Sequence[PromptKey], drawn: Collection[PromptKey], requeued: Sequence[PromptKey]
) -> tuple[PromptKey, ...]:
    """Return the queue after a round, oldest first: without the drawn prompts, with the requeued ones at the end."""
    return (*(prompt for prompt in queue if prompt not in drawn), *requeued)


def ceil_product(factor: float, count: int) -> int:
    """Return ⌈factor · count⌉ of the decimal as written: 1.1 · 10 is 11."""
    return ceil(Fraction(repr(float(factor))) * count)
