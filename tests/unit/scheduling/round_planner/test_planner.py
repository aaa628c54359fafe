"""What-if: rounds on the engine model, lengths that were stopped, plans that pay for their long rounds."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.status import RoundKind
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths, similarity
from rljob_runtime.scheduling.round_planner.planner import (
    FINALISTS,
    HORIZON,
    LEAVE,
    MOST_EVENTS,
    Costs,
    PlanningHorizon,
    Prediction,
    RoundPlanner,
    decide,
)
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, SelectedPlan, candidate_plans
from rljob_runtime.scheduling.round_planner.round_history import PastRound, history_start, population, rounds_considered
from rljob_runtime.scheduling.round_planner.round_simulator import (
    EngineFleet,
    PromptDemand,
    TooManyEvents,
    simulate_round,
)
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival
from rljob_runtime.scheduling.tail_batching import Factors, next_round
from tests.support.examples import examples

# A token a second, however many run: times are lengths.
SECOND = LatencyModel(((1, 1.0),), 0.0, 0.0, 0.0, 0.0)
STAGE = EngineFleet(SECOND, replicas=2, kv_tokens=1 << 30)
BUSY = EngineFleet(LatencyModel(((1, 0.01), (256, 2.56)), 0.0, 0.0, 0.0, 0.0), replicas=2, kv_tokens=1 << 30)
"""Engines that are compute bound: a second token costs as much as the first."""
NEXT_ROUNDS = PlanningHorizon(prompts=16, responses=8, rounds_left=100)
AUTO = candidate_plans(None, None, None, False)


def asked(*lengths: tuple[int, ...]) -> list[PromptDemand]:
    return [PromptDemand(1, one) for one in lengths]


def tailed(random: Random, prompts: int, responses: int, tail: float = 0.02) -> list[PromptLengths]:
    """Short responses, of which a few run away."""
    return [
        PromptLengths(
            10,
            tuple(
                LengthObservation(random.randint(2000, 4000) if random.random() < tail else random.randint(50, 150))
                for _ in range(responses)
            ),
        )
        for _ in range(prompts)
    ]


# --- round simulator ---


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


# --- lengths ---


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


# --- which rounds tell ---


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


# --- plans ---


@pytest.mark.parametrize(
    ("given_", "reference", "count"),
    [
        ((False, None, None, False), Plan(), 1),
        ((True, 1.1, 1.3, True), Plan(Factors(1.1, 1.3), stream=True), 1),
        ((True, 1.0, 1.0, False), Plan(Factors(1, 1)), 1),
        ((True, None, 1.0, False), Plan(Factors(1.25, 1)), 2),
        ((True, None, None, None), Plan(Factors(1.25, 1.25)), 16),
        ((None, 1.5, 1.5, False), Plan(), 2),
        ((None, 1.0, 1.0, False), Plan(), 1),
        ((None, None, None, None), Plan(), 18),
        ((False, None, None, None), Plan(), 2),
    ],
)
def test_what_is_left_open_is_chosen_from(given_, reference, count):
    found = candidate_plans(*given_)
    assert found.reference == reference
    assert len(set(found.plans)) == len(found.plans) == count
    assert found.is_undecided == (count > 1)


@pytest.mark.parametrize("plan", [Plan(), Plan(Factors(1.25, 1), stream=True)])
@pytest.mark.parametrize("figures", [(None, None), (41.5, 2.0, 90.0), (41.5, 2.0, 90.0, ((1, 41.5), (2, 30.0)))])
def test_what_is_chosen_reads_back(plan, figures):
    chosen = SelectedPlan(plan, "why", *figures)
    assert SelectedPlan.from_json(chosen.to_json()) == chosen


def test_a_plan_that_cannot_be_launched_is_none():
    assert candidate_plans(None, None, None, False, fits=lambda factors: False) == CandidatePlans((Plan(),))


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


# --- decisions ---


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
