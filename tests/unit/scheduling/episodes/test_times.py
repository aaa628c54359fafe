"""Seconds in the model and outside of it add up to those of the attempt, whatever turns run concurrently."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.times import (
    AttemptTimes,
    Pause,
    TurnSpan,
    attempt_parts,
    attempt_times,
    counted_seconds,
    limit_start,
)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], AttemptTimes(0.0, 10.0)),
        ([(1.0, 4.0), (6.0, 7.0)], AttemptTimes(4.0, 6.0)),
        ([(6.0, 7.0), (1.0, 4.0)], AttemptTimes(4.0, 6.0)),
        ([(1.0, 4.0), (2.0, 5.0)], AttemptTimes(4.0, 6.0)),
        ([(1.0, 8.0), (2.0, 3.0)], AttemptTimes(7.0, 3.0)),
        ([(-1.0, 2.0)], AttemptTimes(2.0, 8.0)),
        ([(0.0, 10.0)], AttemptTimes(10.0, 0.0)),
    ],
    ids=["no turn", "one after the other", "any order", "siblings", "one inside another", "before a lease", "no tool"],
)
def test_seconds_of_an_attempt(spans, expected):
    assert attempt_times(0.0, 10.0, [TurnSpan(*span) for span in spans]) == expected


@pytest.mark.parametrize(
    ("spans", "pauses", "expected"),
    [
        ([(1.0, 2.0), (7.0, 9.0)], [(3.0, 6.0)], AttemptTimes(3.0, 4.0)),
        ([(1.0, 4.0)], [(3.0, 6.0)], AttemptTimes(2.0, 5.0)),
        ([(1.0, 9.0)], [(3.0, 6.0)], AttemptTimes(5.0, 2.0)),
        ([(4.0, 5.0)], [(3.0, 6.0)], AttemptTimes(0.0, 7.0)),
        ([(1.0, 2.0)], [(3.0, 4.0), (6.0, 8.0)], AttemptTimes(1.0, 6.0)),
        ([(1.0, 2.0)], [(3.0, 12.0)], AttemptTimes(1.0, 2.0)),
    ],
    ids=["between turns", "ends in it", "open all the time", "all of it", "twice", "until the end"],
)
def test_time_without_a_runner_is_in_no_part(spans, pauses, expected):
    given, away = [TurnSpan(*span) for span in spans], [Pause(*pause) for pause in pauses]
    assert attempt_times(0.0, 10.0, given, away) == expected
    assert counted_seconds(0.0, 10.0, away) == expected.model + expected.outside


@pytest.mark.parametrize(
    ("pauses", "runs_again", "expected"),
    [
        ([], False, 100.0),
        ([], True, 100.0),
        ([(110.0, 130.0)], False, 120.0),
        ([(110.0, 130.0), (140.0, 145.0)], False, 125.0),
        ([(110.0, 130.0), (140.0, 145.0)], True, 145.0),
    ],
)
def test_a_pause_moves_the_time_limit(pauses, runs_again, expected):
    assert limit_start(100.0, [Pause(*one) for one in pauses], runs_again) == expected


SPANS = st.lists(st.tuples(st.integers(-3, 14), st.integers(0, 6)).map(lambda pair: TurnSpan(pair[0], sum(pair))))


@given(SPANS)
def test_the_parts_of_an_attempt_follow_one_another_and_have_its_seconds(spans):
    parts = attempt_parts(0.0, 10.0, spans)
    assert [begin for _, begin, _ in parts] == [0.0, *(end for _, _, end in parts[:-1])]
    assert parts[-1][2] == 10.0
    assert all(begin < end for _, begin, end in parts)
    assert all(one[0] != other[0] for one, other in pairwise(parts)), "equal neighbours are one part"
    for second in range(10):
        (is_open,) = [is_open for is_open, begin, end in parts if begin <= second < end]
        assert is_open == any(span.opened <= second < span.stored for span in spans)
    if all(span.stored <= 10 for span in spans):
        model = sum(end - begin for is_open, begin, end in parts if is_open)
        assert model == attempt_times(0.0, 10.0, spans).model


def pauses_of(moments: set[int]) -> list[Pause]:
    """Return pauses between pairs of these moments, in order."""
    ordered = sorted(moments)
    return [Pause(since, until) for since, until in zip(ordered[::2], ordered[1::2], strict=False)]


@given(SPANS, st.sets(st.integers(-2, 12), max_size=6).map(pauses_of))
def test_pauses_cut_the_parts_and_nothing_else(spans, pauses):
    uncut, parts = attempt_parts(0.0, 10.0, spans), attempt_parts(0.0, 10.0, spans, pauses)
    for second in range(10):
        found = [is_open for is_open, begin, end in parts if begin <= second < end]
        away = any(one.since <= second < one.until for one in pauses)
        assert found == ([] if away else [is_open for is_open, begin, end in uncut if begin <= second < end])
    assert all(begin < end for _, begin, end in parts)
    if all(span.stored <= 10 for span in spans):
        seconds = [sum(end - begin for is_open, begin, end in parts if is_open is wanted) for wanted in (True, False)]
        assert AttemptTimes(*seconds) == attempt_times(0.0, 10.0, spans, pauses)
