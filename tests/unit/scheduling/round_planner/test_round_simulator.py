"""One round on the performance model: when its groups are complete, and when it ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round
from tests.support.examples import examples
from tests.support.round_planner import BUSY, SECOND, STAGE, asked


def test_a_round_without_a_race_ends_with_its_longest_response():
    went = simulate_round(STAGE, asked((3, 9), (4, 5)), runners=2, groups=2, group_size=2)
    assert (went.seconds, went.lost, went.stopped) == (9.0, (), {})
    assert [(group.prompt, group.time, group.tokens) for group in went.groups] == [(1, 5.0, 11), (0, 9.0, 14)]


def test_a_race_ends_with_the_places_and_stops_the_rest():
    went = simulate_round(STAGE, asked((3, 90, 4), (50, 60, 70), (5, 6, 7)), runners=3, groups=2, group_size=2)
    assert [(group.prompt, group.time) for group in went.groups] == [(0, 4.0), (2, 6.0)]
    assert went.lost == (1,)
    assert went.stopped == {(0, 1): 4, (2, 2): 6, (1, 0): 6, (1, 1): 6, (1, 2): 6}


def test_rewards_come_later_and_the_others_run_on():
    went = simulate_round(STAGE, asked((3, 4), (5, 9)), runners=2, groups=1, group_size=1, reward_seconds=3.0)
    assert went.seconds == 6.0
    assert went.lost == (1,)


def test_a_filtered_prompt_is_replaced_and_is_not_queued():
    prompts = [PromptDemand(1, (3, 3), filtered=True), PromptDemand(1, (8, 8)), PromptDemand(1, (2, 2))]
    went = simulate_round(STAGE, prompts, runners=2, groups=2, group_size=2)
    # Launched at 3, in the middle of a step that ends at 4.
    assert [(group.prompt, group.time) for group in went.groups] == [(2, 6.0), (1, 8.0)]
    assert went.lost == ()
    assert simulate_round(STAGE, prompts[:2], runners=2, groups=2, group_size=2).groups[0].prompt == 0


@pytest.mark.parametrize(("runners", "groups", "group_size"), [(3, 2, 2), (2, 3, 2), (2, 2, 3), (2, 0, 2)])
def test_a_round_keeps_no_more_than_it_launches(runners, groups, group_size):
    with pytest.raises(ValueError, match="keeps no more than it launches"):
        simulate_round(STAGE, asked((1, 2), (3, 4)), runners, groups, group_size)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=4, max_size=4), min_size=3, max_size=8),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([60, 200, 1 << 20]),
)
def test_any_race_settles_all_that_it_launched(lengths, groups, group_size, replicas, kv_tokens):
    prompts = asked(*map(tuple, lengths))
    stage = EngineFleet(BUSY.latency, replicas, kv_tokens, max_sequences=5)
    went = simulate_round(stage, prompts, len(prompts), groups, group_size)
    winners = [group.prompt for group in went.groups]
    assert len(set(winners)) == groups
    assert sorted([*winners, *went.lost]) == list(range(len(prompts)))
    for prompt, one in enumerate(prompts):
        ended = [sample for sample in range(4) if (prompt, sample) not in went.stopped]
        assert len(ended) == group_size if prompt in winners else len(ended) <= group_size
        assert all(went.stopped[prompt, s] <= one.lengths[s] for s in range(4) if s not in ended)
    assert [group.time for group in went.groups] == sorted(group.time for group in went.groups)
    assert went == simulate_round(stage, prompts, len(prompts), groups, group_size)
    # Racing against more prompts never takes longer where engines have room for all.
    if kv_tokens == 1 << 20 and replicas == 4:
        plain = simulate_round(replace(stage, latency=SECOND), prompts, len(prompts), len(prompts), 4)
        assert (
            simulate_round(replace(stage, latency=SECOND), prompts, len(prompts), groups, group_size).seconds
            <= plain.seconds
        )
