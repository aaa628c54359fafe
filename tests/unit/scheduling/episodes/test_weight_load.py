"""How long newer weights wait for open turns: a table, and what holds for any of them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.weight_load import MOST_SECONDS, RunningTurn, seconds_to_wait

SECONDS = st.floats(0.0, 1000.0)


@pytest.mark.parametrize(
    ("running", "waiting", "waited", "seconds"),
    [
        pytest.param([], [5.0], 5.0, 0.0, id="no turn is open"),
        pytest.param([4.0], [], 0.0, MOST_SECONDS, id="no turn waits: the open one may end"),
        pytest.param([4.0], [], MOST_SECONDS, 0.0, id="the replica draws nothing meanwhile"),
        pytest.param([4.0], [1.0], 1.0, MOST_SECONDS - 1.0, id="one waits for one: waiting never costs more"),
        pytest.param([4.0], [1.0, 1.0], 1.0, 2.0, id="two wait for one"),
        pytest.param([4.0], [2.0, 2.0], 2.0, 0.0, id="they have waited as long as it has run"),
        pytest.param([4.0, 4.0], [1.0, 1.0, 1.0], 1.0, 5.0, id="three wait for two"),
        pytest.param([40.0], [1.0, 1.0], 29.0, 1.0, id="the longest wait comes first"),
    ],
)
def test_a_load_waits_until_waiting_costs_as_much_as_interruption(running, waiting, waited, seconds):
    assert seconds_to_wait([RunningTurn(one) for one in running], waiting, waited) == seconds


def test_a_turn_is_interrupted_once():
    turns = [RunningTurn(1.0), RunningTurn(1.0, interrupted=True)]
    assert seconds_to_wait(turns, [50.0, 50.0, 50.0], waited=50.0) == inf


@given(st.lists(SECONDS, min_size=1, max_size=6), st.lists(SECONDS, max_size=6), SECONDS)
def test_after_its_wait_a_load_interrupts(running, waiting, waited):
    left = seconds_to_wait([RunningTurn(one) for one in running], waiting, waited)
    assert 0.0 <= left <= MOST_SECONDS
    later = [RunningTurn(one + left) for one in running]
    assert seconds_to_wait(later, [one + left for one in waiting], waited + left) == 0.0
