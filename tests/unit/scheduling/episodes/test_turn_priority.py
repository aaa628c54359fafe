"""Turns of started episodes go before first turns, the oldest episode first."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.turn_priority import FIRST_TURN, turn_priority

NOW = 1_790_000_000.0
"""Seconds of the epoch, in the year 2026."""
starts = st.floats(0, 10 * NOW)


def test_first_turns_are_served_as_they_arrive_like_responses_of_one_turn():
    assert {turn_priority(started, 0) for started in (0.0, NOW, 10 * NOW)} == {FIRST_TURN} == {0}


@given(starts, starts, st.integers(1, 100), st.integers(1, 100))
def test_started_episodes_go_before_first_turns_and_the_oldest_first(one, other, turns, more):
    older, younger = sorted((one, other))
    assert turn_priority(older, turns) <= turn_priority(younger, more) < FIRST_TURN
    if younger - older > 0.002:
        assert turn_priority(older, turns) < turn_priority(younger, more)


def test_an_episode_keeps_its_place_whatever_turns_it_has():
    assert turn_priority(NOW, 1) == turn_priority(NOW, 80)
