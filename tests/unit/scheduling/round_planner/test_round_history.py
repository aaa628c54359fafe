"""Which rounds of the past the planner considers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_planner.length_model import PromptLengths
from rljob_runtime.scheduling.round_planner.planner import Prediction
from rljob_runtime.scheduling.round_planner.plans import Plan
from rljob_runtime.scheduling.round_planner.round_history import PastRound, history_start, population, rounds_considered
from rljob_runtime.scheduling.round_planner.survival import LengthObservation
from rljob_runtime.scheduling.tail_batching import Factors


def test_a_prompt_counts_once_by_what_was_seen_last():
    lost, old, won = PromptKey(0, 1), PromptKey(0, 0), PromptKey(0, 2)
    cut, whole = PromptLengths(1, (LengthObservation(5, ended=False),)), PromptLengths(1, (LengthObservation(90),))
    short = PastRound(4, {lost: cut, won: whole})
    long = PastRound(5, {lost: whole, old: whole}, frozenset({lost, old}))
    assert population([short, long]) == [whole, whole]
    assert population([short]) == [cut, whole]


@given(st.integers(1, 100), st.lists(st.integers(1, 100), unique=True))
def test_the_last_rounds_and_a_few_whole_ones_are_looked_at(last, whole):
    steps = rounds_considered(last, whole)
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == last
    assert len(steps) <= 10
    since = last // 2 + 1
    assert rounds_considered(last, whole, since) == tuple(step for step in steps if step >= since)


@pytest.mark.parametrize(
    ("seconds", "of_draws", "surprised"),
    [(14.0, 20.0, False), (19.0, 20.0, False), (21.0, 20.0, True), (15.1, 9.0, True)],
)
def test_a_round_slower_than_every_sampled_prediction_is_a_surprise(seconds, of_draws, surprised):
    predicted = Prediction(Plan(Factors()), plain=20.0, short=10.0, long=30.0, seconds=12.0, longest=of_draws)
    explained = predicted.explained(RoundKind.SHORT, 0)
    assert history_start([(6, 99.0, None), (7, seconds, explained), (8, 1.0, explained)]) == 7 * surprised
