"""Seconds in the model and outside of it add up to those of the attempt, whatever turns run concurrently."""

import pytest

from rljob_runtime.scheduling.episodes.times import AttemptTimes, TurnSpan, attempt_times


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
