"""Choice: which responses of a round are kept for people to read.

A few responses must show the best and the worst of what is trained on or evaluated, what is typical, and what is lost.
The choice is a function of the responses alone: order and restarts do not change it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from rljob_runtime.samples.record import SampleOutcome

LOST = (SampleOutcome.FAILED, SampleOutcome.FILTERED, SampleOutcome.REQUEUED, SampleOutcome.ABORTED)
"""Outcomes without training, the most telling first."""


@dataclass(frozen=True)
class Candidate:
    """A response that may be kept. `key` is unique in the round."""

    key: str
    outcome: SampleOutcome
    reward: float | None = None


def choose(candidates: Sequence[Candidate], count: int | None, seed: str) -> tuple[int, ...]:
    """Return the places of the kept candidates, rising; `count` of them at most, None for all.

    The turn goes round four orders until `count` are chosen: best, worst, lost, and not lost at random.
    Among lost ones the turn goes round the outcomes. `seed` decides what is random, and which of equal ones is first.
    """
    if count is None or len(candidates) <= count:
        return tuple(range(len(candidates)))
    drawn = sorted(range(len(candidates)), key=lambda place: _lot(seed, candidates[place].key))
    used = [place for place in drawn if candidates[place].outcome not in LOST]
    worst_first = sorted(used, key=lambda place: _reward(candidates[place]))
    best_first = sorted(used, key=lambda place: -_reward(candidates[place]))
    lost = _in_turn(*([place for place in drawn if candidates[place].outcome is outcome] for outcome in LOST))
    chosen: dict[int, None] = {}
    orders = [iter(best_first), iter(worst_first), lost, iter(used)]
    while len(chosen) < count:
        for order in orders:
            fresh = next((place for place in order if place not in chosen), None)
            if fresh is not None and len(chosen) < count:
                chosen[fresh] = None
    return tuple(sorted(chosen))


def _lot(seed: str, key: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest(), key


def _reward(candidate: Candidate) -> float:
    return candidate.reward if candidate.reward is not None else 0.0


def _in_turn(*orders: Sequence[int]) -> Iterator[int]:
    """Yield the first of each order, then the second of each, and so on."""
    return (place for place in chain.from_iterable(zip_longest(*orders)) if place is not None)
