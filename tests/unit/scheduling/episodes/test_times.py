"""Seconds in the model and outside of it add up to those of the attempt, whatever turns run concurrently."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.times import AttemptTimes, TurnSpan, attempt_parts, attempt_times


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
