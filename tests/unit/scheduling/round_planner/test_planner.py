"""Plans pay for their long rounds, and the one that is selected is a clear gain."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths
from rljob_runtime.scheduling.round_planner.planner import (
    FINALISTS,
    HORIZON,
    LEAVE,
    MOST_EVENTS,
    Costs,
    PlanningHorizon,
    RoundPlanner,
    decide,
)
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, candidate_plans
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, TooManyEvents, simulate_round
from rljob_runtime.scheduling.round_planner.survival import LengthObservation
from rljob_runtime.scheduling.tail_batching import Factors, next_round
from tests.support.examples import examples
from tests.support.round_planner import BUSY, STAGE, asked, tailed

NEXT_ROUNDS = PlanningHorizon(prompts=16, responses=8, rounds_left=100)
AUTO = candidate_plans(None, None, None, False)


@given(
    st.integers(1, 20),
    st.integers(1, 60),
    st.integers(0, 40),
    st.sampled_from([None, Factors(1.25, 1), Factors(1.5, 1.5), Factors(1, 1.5), Factors(4, 1)]),
)
def test_a_plan_pays_for_every_prompt_that_it_queues(prompts, left, queued, factors):
    plain, short, long = PlanningHorizon(prompts, 8, left, queued).rounds(factors)
    rounds = min(left, HORIZON)
    assert plain + short + long == rounds
    each = next_round(prompts, 8, factors, 0, 1000).shape.prompts - prompts if factors else 0
    if queued + short * each <= rounds * prompts:
        assert long * prompts >= min(queued + short * each, (rounds - short) * prompts)
    if factors is None:
        assert short == 0


def test_long_rounds_are_charged():
    """Half of the prompts are hard, and hard in every response: a race of prompts never meets them, its queue does."""
    hard = [PromptLengths(1, (LengthObservation(1000),) * 2) for _ in range(5)]
    easy = [PromptLengths(1, (LengthObservation(10),) * 2) for _ in range(5)]
    lengths = LengthModel([*hard, *easy] * 4, limit=1000)
    factors = Factors(4, 1)
    planner = RoundPlanner(
        CandidatePlans((Plan(), Plan(factors))), STAGE, lengths, Costs(update=5.0), PlanningHorizon(4, 2, 400)
    )
    found = planner.predict_plan(Plan(factors), draws=4)
    assert found.short < 100 < 1000 <= found.long
    assert PlanningHorizon(4, 2, 400).rounds(factors)[1:] == (10, 30)
    assert found.seconds == pytest.approx((10 * found.short + 30 * found.long) / 40)


def test_streaming_hides_what_can_be_computed_before_the_last_group():
    went = simulate_round(STAGE, asked((10, 10), (90, 90)), runners=2, groups=2, group_size=2)
    costs = Costs(update=4.0, token=1.0, broadcast=1.0)
    assert costs.round(went, stream=False) == 90 + (22 + 182) + 5
    assert costs.round(went, stream=True) == 90 + 182 + 5
    assert replace(costs, stream_slowdown=2.0).round(went, stream=True) == 180 + 182 + 5


@pytest.mark.parametrize(
    ("stream", "race", "saved"), [(False, False, 30), (False, True, 7), (True, False, 30), (True, True, 7)]
)
def test_switches_shorten_rounds_and_races_by_seconds_of_their_own(stream, race, saved):
    went = simulate_round(STAGE, asked((90,), (10,)), 2, 2, 1)
    costs = Costs(update=4.0, token=1.0, broadcast=1.0)
    switched = replace(costs, saved=30.0, saved_in_race=7.0)
    assert switched.round(went, stream, race) == costs.round(went, stream, race) - saved


def test_plain_rounds_with_switches_are_one_more_plan():
    """Where they save as much as a race does, its short responses need no over-sampling."""
    random = Random(5)
    tails = [PromptLengths(10, tuple(LengthObservation(200 if random.random() < 0.03 else 20) for _ in range(8)))]
    lengths = LengthModel(tails * 16 + [PromptLengths(10, (LengthObservation(200), *[LengthObservation(20)] * 7))], 400)
    without = decide(RoundPlanner(AUTO, STAGE, lengths, Costs(), NEXT_ROUNDS), in_force=Plan())
    assert without.plan.factors is not None
    saved = without.reference.plain - 20
    switched = decide(RoundPlanner(AUTO, STAGE, lengths, Costs(saved=saved), NEXT_ROUNDS), in_force=Plan())
    assert switched.plan == Plan()
    assert switched.prediction.plain == pytest.approx(20)


def planner_of(prompts, stage=STAGE, open_=AUTO, horizon=NEXT_ROUNDS, seed="0"):
    return RoundPlanner(open_, stage, LengthModel(prompts, limit=4000), Costs(), horizon, seed=seed)


def test_a_long_tail_races_and_a_plateau_does_not():
    race = decide(planner_of(tailed(Random(0), 64, 8)), in_force=Plan())
    assert race.plan.factors is not None
    assert race.speedup > 1.5
    plateau = [PromptLengths(10, tuple(LengthObservation(random.randint(900, 1000)) for _ in range(8)))
               for random in map(Random, range(64))]  # fmt: skip
    busy = decide(planner_of(plateau, BUSY), in_force=Plan())
    assert busy.plan == Plan()
    assert busy.prediction == busy.reference
    assert "plain: " in busy.reason


def test_the_same_question_has_the_same_answer():
    horizon = PlanningHorizon(8, 4, 100)
    first, second = (decide(planner_of(tailed(Random(0), 24, 4), horizon=horizon), in_force=Plan()) for _ in range(2))
    assert first == second


@settings(max_examples=examples(15))
@given(st.integers(0, 1000), st.floats(0, 0.05), st.sampled_from([STAGE, BUSY]))
def test_the_reference_is_left_for_a_clear_gain_and_returned_to_late(seed, tail, stage):
    asked_ = planner_of(tailed(Random(seed), 24, 4, tail), stage, horizon=PlanningHorizon(8, 4, 100), seed=str(seed))
    left = decide(asked_, in_force=Plan())
    if left.plan != Plan():
        assert left.prediction.seconds < (1 - LEAVE) * left.reference.seconds
        again = decide(asked_, in_force=left.plan)
        assert again.plan == left.plan
    for plan in (Plan(Factors(1, 1.25)), Plan(Factors(1.25, 1.25))):
        stayed = decide(asked_, in_force=plan)
        assert stayed.prediction.seconds <= stayed.reference.seconds


def test_a_former_plan_that_is_no_candidate_has_no_effect():
    tail = planner_of(tailed(Random(0), 64, 8), open_=candidate_plans(False, 1, 1, None))
    assert decide(tail, in_force=Plan(Factors(1.5, 1.5))).plan.factors is None


def test_filtered_prompts_stand_ready_for_a_round_that_replaces_them():
    random = Random(0)
    seen = [replace(prompt, filtered=number % 2 == 0) for number, prompt in enumerate(tailed(random, 64, 8))]
    lengths = LengthModel(seen, limit=4000)
    replaced, kept = (
        RoundPlanner(AUTO, STAGE, lengths, Costs(), replace(NEXT_ROUNDS, most_prompts=most)) for most in (128, 16)
    )
    assert replaced.predict_plan(Plan(), draws=1).seconds >= kept.predict_plan(Plan(), draws=1).seconds
    assert replaced.events > 1.3 * kept.events


def test_a_decision_over_a_thousand_responses_is_cheap():
    """Events of the engine model are what it costs; docs/internals/scheduling/round-planner.md has the seconds."""
    asked_ = planner_of(tailed(Random(0), 256, 8), horizon=PlanningHorizon(128, 8, 100))
    decide(asked_, in_force=Plan(Factors()))
    rounds = len(AUTO.plans) * 2 + (FINALISTS + 1) * 2 * 2
    assert 1024 * 3 < asked_.events < 1024 * 1.6 * rounds


EVERY = candidate_plans(None, None, None, None)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("kv_tokens", [20_000, 1 << 30])
def test_filters_and_preemptions_do_not_slow_a_decision(filtered, kv_tokens):
    prompts = [
        PromptLengths(
            10, tuple(LengthObservation(random.randint(1000, 4000)) for _ in range(8)), filtered and number % 10 < 7
        )
        for number, random in enumerate(map(Random, range(256)))
    ]
    lengths = LengthModel(prompts, limit=4000)
    horizon = PlanningHorizon(128, 8, 100, most_prompts=1024)
    costly = RoundPlanner(EVERY, EngineFleet(BUSY.latency, 8, kv_tokens), lengths, Costs(), horizon)
    decision = decide(costly, in_force=Plan(Factors()))
    assert len(EVERY.plans) == 18
    assert costly.events <= MOST_EVENTS
    all_were_looked_at = "plans were looked at" not in decision.reason
    assert all_were_looked_at == (not filtered and kv_tokens > 20_000)


def test_a_plan_that_costs_too_much_to_look_at_is_not_taken():
    """Its race would win by far; of a plan that was not played to its end nothing is known."""
    prompts, race = tailed(Random(0), 64, 8), Plan(Factors(1, 1.5))
    both = CandidatePlans((Plan(), race))
    free, plain, tight = (planner_of(prompts, open_=both) for _ in range(3))
    assert decide(free, in_force=Plan()).plan == race
    known = plain.compare([Plan()], 1, MOST_EVENTS)
    assert tight.compare([Plan(), race], 24, plain.events + 5) == known
    assert tight.events == plain.events + 5
    with pytest.raises(TooManyEvents):
        tight.predict_plan(race, 1)


def test_where_events_run_out_all_plans_have_had_the_same_draws():
    plans, prompts = AUTO.plans, tailed(Random(0), 64, 8)
    once, thrice = planner_of(prompts), planner_of(prompts)
    one_draw = once.compare(plans, 1, MOST_EVENTS)
    assert thrice.compare(plans, 3, once.events + once.events // 2) == one_draw
    assert thrice.compare(plans, 3, MOST_EVENTS) == planner_of(prompts).compare(plans, 3, MOST_EVENTS) != one_draw


def test_every_plan_has_its_turn():
    in_force = Plan(Factors())
    turns = [planner_of(tailed(Random(0), 8, 8), seed=str(seed)).in_turn(in_force) for seed in range(60)]
    assert all(turn[:2] == [Plan(), in_force] and sorted(map(str, turn)) == sorted(map(str, AUTO.plans))
               for turn in turns)  # fmt: skip
    assert {turn[2] for turn in turns} == set(AUTO.plans) - {Plan(), in_force}


def test_draws_are_counted_by_what_filtering_launches():
    prompts = tailed(Random(0), 64, 8)
    filtered = [replace(one, filtered=number % 4 > 0) for number, one in enumerate(prompts)]
    assert planner_of(prompts).draws == 24
    assert planner_of(filtered).draws == 6
