"""Times: how an attempt's seconds divide into those in the model and those outside of it.

Turns may run concurrently, as siblings do. The seconds in the model are those in which at least one turn is open, so
that both parts add up to the seconds of the attempt. Those of its pauses are in neither, and do not count towards its
time limit either. All moments are seconds of the epoch, and none is ever moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, order=True)
class TurnSpan:
    """The seconds of the epoch of a turn, from its request to its stored answer; or of the call of a tool."""

    opened: float
    stored: float


@dataclass(frozen=True, order=True)
class Pause:
    """The time without a runner: from the last contact of the lost one until the next one has the attempt."""

    since: float
    until: float


@dataclass(frozen=True)
class AttemptTimes:
    """Seconds of an attempt: with a turn open, and without one (tools, the harness, the way to the gateway)."""

    model: float
    outside: float


class Place(StrEnum):
    """Where an attempt is."""

    MODEL = "model"
    TOOLS = "tools"
    OUTSIDE = "outside"
    """In its harness, or on the way to the gateway."""


def limit_start(started: float, pauses: Sequence[Pause], runs_again: bool) -> float:
    """Return the moment from which the time limit of an attempt counts.

    `runs_again`: each further runner runs its program from the beginning, and gives it all of the time again.

    >>> limit_start(0.0, [Pause(2.0, 5.0), Pause(6.0, 7.0)], False), limit_start(0.0, [Pause(2.0, 5.0)], True)
    (4.0, 5.0)
    """
    if runs_again and pauses:
        return pauses[-1].until
    return started + sum(one.until - one.since for one in pauses)


def counted_seconds(since: float, until: float, pauses: Iterable[Pause] = ()) -> float:
    """Return the seconds between two moments without those of pauses.

    >>> counted_seconds(0.0, 10.0, [Pause(2.0, 5.0), Pause(9.0, 12.0)])
    6.0
    """
    away = sum(max(0.0, min(one.until, until) - max(one.since, since)) for one in pauses)
    return max(0.0, until - since - away)


def attempt_parts(
    started: float, ended: float, spans: Iterable[TurnSpan], pauses: Sequence[Pause] = ()
) -> list[tuple[bool, float, float]]:
    """Divide the time of an attempt into parts, in order: whether a turn is open, from when, to when.

    Between them are only its pauses.

    >>> attempt_parts(0.0, 10.0, [TurnSpan(1.0, 4.0), TurnSpan(2.0, 5.0), TurnSpan(8.0, 9.0)])
    [(False, 0.0, 1.0), (True, 1.0, 5.0), (False, 5.0, 8.0), (True, 8.0, 9.0), (False, 9.0, 10.0)]
    """
    return [found for part in _parts(started, ended, spans) for found in _without(pauses, part)]


def with_tools(
    parts: Iterable[tuple[bool, float, float]], calls: Iterable[TurnSpan]
) -> list[tuple[Place, float, float]]:
    """Divide the parts of an attempt without an open turn: a call of a tool runs, or none does.

    >>> found = with_tools([(True, 0.0, 2.0), (False, 2.0, 9.0)], [TurnSpan(3.0, 5.0), TurnSpan(4.0, 6.0)])
    >>> [(str(place), since, until) for place, since, until in found]
    [('model', 0.0, 2.0), ('outside', 2.0, 3.0), ('tools', 3.0, 6.0), ('outside', 6.0, 9.0)]
    """
    known, found = sorted(calls), list[tuple[Place, float, float]]()
    for is_open, since, until in parts:
        if is_open:
            found.append((Place.MODEL, since, until))
            continue
        own = _parts(since, until, known)
        found += [(Place.TOOLS if runs else Place.OUTSIDE, begin, end) for runs, begin, end in own]
    return found


def _without(pauses: Sequence[Pause], part: tuple[bool, float, float]) -> Iterator[tuple[bool, float, float]]:
    """Yield what pauses leave of a part."""
    is_open, reached, end = part
    for pause in sorted(pauses):
        if (until := min(pause.since, end)) > reached:
            yield is_open, reached, until
        reached = max(reached, pause.until)
    if end > reached:
        yield is_open, reached, end


def _parts(started: float, ended: float, spans: Iterable[TurnSpan]) -> list[tuple[bool, float, float]]:
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


def attempt_times(
    started: float, ended: float, spans: Iterable[TurnSpan], pauses: Sequence[Pause] = ()
) -> AttemptTimes:
    """Divide the seconds of an attempt. What a turn is open during a pause is not counted.

    >>> attempt_times(0.0, 10.0, [TurnSpan(1.0, 4.0), TurnSpan(2.0, 5.0), TurnSpan(8.0, 9.0)])
    AttemptTimes(model=5.0, outside=5.0)
    """
    model, reached = 0.0, started
    for span in sorted(spans):
        model += counted_seconds(max(span.opened, reached), span.stored, pauses)
        reached = max(reached, span.stored)
    return AttemptTimes(model, max(0.0, counted_seconds(started, ended, pauses) - model))
