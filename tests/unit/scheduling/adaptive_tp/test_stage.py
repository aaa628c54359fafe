"""Stages that are races: the same as those of the round simulator, and what a policy sees of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Race, Stage, generate
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round
from tests.support.adaptive_tp import ACCELERATORS, ENGINES, LIMIT, costs


def demands(prompts: int, responses: int, seed: int = 0) -> list[PromptDemand]:
    random = Random(seed)

    def length() -> int:
        return int(min(LIMIT, 50 + random.expovariate(1 / 900)))

    return [PromptDemand(100, tuple(length() for _ in range(responses))) for _ in range(prompts)]


def asked_of(drawn: list[PromptDemand]) -> list[Asked]:
    return [Asked(one.prompt_tokens, tokens, number) for number, one in enumerate(drawn) for tokens in one.lengths]


def seconds_of_both(drawn: list[PromptDemand], kept: Race, size: int, tight: bool) -> tuple[float, float]:
    """Play a race as a stage, and as a round of the round simulator."""
    kv_tokens = LIMIT + 200 if tight else ENGINES[size].kv_tokens
    fleet = EngineFleet(ENGINES[size].latency, ACCELERATORS // size, kv_tokens)
    expected = simulate_round(fleet, drawn, len(drawn), kept.groups, kept.group_size)
    engines = {size: replace(ENGINES[size], kv_tokens=kv_tokens)}
    return generate(asked_of(drawn), size, engines, ACCELERATORS, {}, race=kept).seconds, expected.seconds


def test_responses_that_lose_their_places_leave_an_engine_together() -> None:
    """One by one, the first would end the engine's step, and the others would take part in the next."""
    found, expected = seconds_of_both(demands(7, 8), Race(5, 1), 1, tight=False)
    assert found == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 8), st.data(), st.sampled_from([1, 2, 4]), st.booleans())
def test_a_race_ends_when_it_does_in_the_round_simulator(
    seed: int, prompts: int, responses: int, data: st.DataObject, size: int, tight: bool
) -> None:
    kept = Race(data.draw(st.integers(1, prompts)), data.draw(st.integers(1, responses)))
    found, expected = seconds_of_both(demands(prompts, responses, seed), kept, size, tight)
    assert found == pytest.approx(expected)


def test_a_policy_sees_open_places_and_stopped_responses() -> None:
    seen: list[MachineSnapshot] = []
    drawn = demands(6, 4)

    def look(stage: Stage) -> None:
        seen.append(stage.snapshot((), (), LIMIT))

    generate(asked_of(drawn), 1, ENGINES, ACCELERATORS, {}, look, Race(5, 3))
    assert all(one.is_race and one.wanted == 5 and len(one.groups) == 6 for one in seen)
    places = [sum(group.missing for group in one.groups) for one in seen]
    assert places == sorted(places, reverse=True)
    assert places[0] == 6 * 3 - 1
    for one in seen:
        complete = {number for number, group in enumerate(one.groups) if not group.missing}
        assert complete.isdisjoint(running.group for running in one.running), "losers are stopped"
        assert len(complete) < 5, "no look after the end"
    known = [len(one.lengths.lengths) for one in seen]
    assert known == sorted(known)
    assert known[0] < known[-1]


def test_a_race_may_switch_and_keeps_its_losers_stopped() -> None:
    drawn = demands(6, 4)
    pairs = costs(0.0).table(ENGINES, ACCELERATORS)
    switched = generate(asked_of(drawn), 1, ENGINES, ACCELERATORS, pairs, lambda stage: 4, Race(5, 3))
    without = generate(asked_of(drawn), 1, ENGINES, ACCELERATORS, pairs, race=Race(5, 3))
    assert [(one.start, one.target) for one in switched.switches] == [(1, 4)]
    assert switched.seconds < without.seconds


def test_a_race_that_keeps_more_than_it_launches_is_refused() -> None:
    with pytest.raises(ValueError, match="no more than it launches"):
        generate(asked_of(demands(3, 2)), 1, ENGINES, ACCELERATORS, {}, race=Race(4, 2))
