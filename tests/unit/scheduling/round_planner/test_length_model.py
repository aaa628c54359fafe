"""The lengths of responses that were stopped, and of prompts that were seen before."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths, similarity
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival
from tests.support.round_planner import SECOND, tailed


@given(
    st.lists(st.builds(LengthObservation, st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 60),
)
def test_what_was_stopped_is_longer_than_where_it_was_stopped(responses, reached):
    curve = Survival.of(responses)
    longest = max(one.tokens for one in responses)
    drawn = [curve.beyond(reached, share / 20) for share in range(20)]
    assert drawn == sorted(drawn)
    assert all(reached < length <= max(longest, reached + 1) for length in drawn)


def test_the_tail_is_seen_through_a_race():
    """Of 1,000 responses a tenth is long. All of the long ones but those of one round in ten were stopped early."""
    random = Random(1)
    prompts = []
    for number in range(500):
        long = random.random() < 0.1
        length = 1000 if long else random.randint(50, 100)
        seen = (
            LengthObservation(length)
            if not long or number % 5 == 0
            else LengthObservation(random.randint(60, 300), ended=False)
        )
        prompts.append(PromptLengths(1, (seen,)))
    lengths = LengthModel(prompts, limit=2000)
    drawn = [one.lengths[0] for one in lengths.draw(random, 4000, 1)]
    assert fmean(length >= 1000 for length in drawn) == pytest.approx(0.1, abs=0.03)


def test_the_responses_of_a_prompt_stay_together():
    hard = [PromptLengths(1, (LengthObservation(100 * n),) * 4) for n in range(1, 20)]
    lengths = LengthModel(hard, limit=10_000)
    assert lengths.similarity == 1.0
    assert all(len(set(one.lengths)) == 1 for one in lengths.draw(Random(0), 50, 6))
    loser = PromptDemand(1, (1900,) * 4)
    assert lengths.redraw(Random(0), loser, 3) == PromptDemand(1, (1900,) * 3)
    apart = LengthModel(
        [PromptLengths(1, tuple(LengthObservation(n) for n in (10, 20, 30, 2000))) for _ in range(20)], limit=10_000
    )
    assert apart.similarity == 0.0
    assert fmean(length > 1000 for _ in range(100) for length in apart.redraw(Random(_), loser, 8).lengths) < 0.4


def test_more_responses_leave_the_first_ones_as_they_are():
    lengths = LengthModel(tailed(Random(3), 30, 4), limit=4000)
    few, more = (lengths.draw(Random(5), 1, responses)[0].lengths for responses in (3, 9))
    assert more[:3] == few
    assert len(more) == 9


@given(
    st.lists(st.builds(LengthObservation, st.integers(0, 900), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 900),
    st.integers(1, 12),
)
def test_no_response_is_longer_than_the_present_limit(responses, limit, launched):
    """An edit may have lowered it below what was seen; a longer one would not fit the engines' KV cache."""
    lengths = LengthModel([PromptLengths(1, tuple(responses))], limit)
    (one,) = lengths.draw(Random(0), 1, launched)
    again = lengths.redraw(Random(0), one, launched)
    assert all(1 <= length <= limit for length in (*one.lengths, *again.lengths))
    simulate_round(
        EngineFleet(SECOND, replicas=1, kv_tokens=1 + limit), [one], runners=1, groups=1, group_size=launched
    )


def test_similarity_is_between_none_and_all():
    random = Random(0)
    half = [[LengthObservation(round(1000 * 2 ** (hard + random.gauss(0, 1)))) for _ in range(8)] for hard in
            (random.gauss(0, 1) for _ in range(400))]  # fmt: skip
    assert similarity(half) == pytest.approx(0.5, abs=0.07)
    assert similarity([]) == similarity([[LengthObservation(3)]]) == 0.0
