"""Times: how an attempt's seconds divide into those in the model and those outside of it.

Turns may run concurrently, as siblings do. The seconds in the model are those in which at least one turn is open, so
that both parts add up to the seconds of the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class TurnSpan:
    """The seconds of the epoch from a turn's request to its stored answer."""

    opened: float
    stored: float


@dataclass(frozen=True)
class AttemptTimes:
    """Seconds of an attempt: with a turn open, and without one (tools, the harness, the way to the gateway)."""

    model: float
    outside: float


def attempt_parts(started: float, ended: float, spans: Iterable[TurnSpan]) -> list[tuple[bool, float, float]]:
    """Divide the time of an attempt into parts, in order and without gaps: whether a turn is open, from when, to when.

    >>> attempt_parts(0.0, 10.0, [TurnSpan(1.0, 4.0), TurnSpan(2.0, 5.0), TurnSpan(8.0, 9.0)])
    [(False, 0.0, 1.0), (True, 1.0, 5.0), (False, 5.0, 8.0), (True, 8.0, 9.0), (False, 9.0, 10.0)]
    """
    parts: list[tuple[bool, float, float]] = []
    reached = started
    for span in sorted(spans):
        begin, end = min(max(span.opened, reached), ended), min(span.stored, ended)
        if end <= begin:
            continue
        if begin > reached:
            parts.append((False, reached, begin))
        elif parts:
            begin = parts.pop()[1]
        parts.append((True, begin, end))
        reached = end
    if ended > reached:
        parts.append((False, reached, ended))
    return parts


def attempt_times(started: float, ended: float, spans: Iterable[TurnSpan]) -> AttemptTimes:
    """Divide the seconds of an attempt.

    >>> attempt_times(0.0, 10.0, [TurnSpan(1.0, 4.0), TurnSpan(2.0, 5.0), TurnSpan(8.0, 9.0)])
    AttemptTimes(model=5.0, outside=5.0)
    """
    model, reached = 0.0, started
    for span in sorted(spans):
        model += max(0.0, span.stored - max(span.opened, reached))
        reached = max(reached, span.stored)
    return AttemptTimes(model, max(0.0, ended - started - model))
