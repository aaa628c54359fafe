"""The decision to switch: a table, and properties over drawn machines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.scheduling.adaptive_tp import policy
from rljob_runtime.scheduling.adaptive_tp.draws import draws_of
from rljob_runtime.scheduling.adaptive_tp.load_curve import load_curve
from rljob_runtime.scheduling.adaptive_tp.policy import LookCadence, SwitchOutcome, SwitchRules, decide
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, OtherEngine, Running
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Stage, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.adaptive_tp.switch_plan import FULL, plan_switches
from rljob_runtime.scheduling.adaptive_tp.tail import play
from rljob_runtime.scheduling.lending.gain import OpenGroup
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import ACCELERATORS, ENGINES, LENGTHS, LIMIT, costs, engine, machine
from tests.support.processor_time import growth

RULES = SwitchRules(frozenset(ENGINES))
TAIL = machine((1, 1, 1, 1))
"""Four responses on four engines of one accelerator, with thousands of tokens to go."""
ALIGNED = machine((60, 60, 60, 60), generated=0)
FULL_ENGINES = {1: ENGINES[1], 2: engine(2, kv_tokens=300), 4: engine(4, kv_tokens=300)}
BUSY_ENGINES = {1: ENGINES[1], **{size: replace(engine(size), max_running=size // 2) for size in (2, 4)}}
"""Each machine of a wider size runs two of the four responses together."""
SOON_FULL = {1: engine(1, kv_tokens=2_000), 2: ENGINES[2], 4: ENGINES[4]}
"""60 responses are 6,000 tokens with their prompts, and will be some 50,000."""
WIDER_IS_WORSE = {1: ENGINES[1], 2: engine(2, slow=3), 4: engine(4, slow=4)}


@pytest.mark.parametrize(
    ("snapshot", "engines", "rules", "fixed", "expected", "target"),
    [
        pytest.param(TAIL, ENGINES, RULES, 0.5, SwitchOutcome.SWITCHED, 4, id="a tail goes wide"),
        pytest.param(ALIGNED, ENGINES, RULES, 0.5, SwitchOutcome.LATER, None, id="many responses wait for their tail"),
        pytest.param(TAIL, ENGINES, RULES, 500.0, SwitchOutcome.NO_GAIN, None, id="a switch that costs too much"),
        pytest.param(TAIL, WIDER_IS_WORSE, RULES, 0.5, SwitchOutcome.NO_GAIN, None, id="wider engines are slower"),
        pytest.param(
            replace(ALIGNED, tensor_parallel=4, replicas=(tuple(ALIGNED.running),)),
            ENGINES,
            RULES,
            0.5,
            SwitchOutcome.SWITCHED,
            1,
            id="a start that is too wide goes narrow",
        ),
        pytest.param(replace(TAIL, waiting=1), ENGINES, RULES, 0.5, SwitchOutcome.WAITING, None, id="one waits"),
        pytest.param(
            replace(TAIL, queued=1), ENGINES, RULES, 0.5, SwitchOutcome.SWITCHED, 4, id="one waits in its engine"
        ),
        pytest.param(
            replace(TAIL, queued=1), FULL_ENGINES, RULES, 0.5, SwitchOutcome.WAITING, None, id="and would in others"
        ),
        pytest.param(
            ALIGNED, SOON_FULL, RULES, 0.5, SwitchOutcome.SWITCHED, 2, id="it leaves a size before it is full"
        ),
        pytest.param(
            replace(TAIL, replicas=((), ())), ENGINES, RULES, 0.5, SwitchOutcome.IDLE, None, id="nothing runs"
        ),
        pytest.param(
            replace(TAIL, switches=3), ENGINES, RULES, 0.5, SwitchOutcome.MAX_SWITCHES, None, id="all switches are made"
        ),
        pytest.param(
            TAIL, ENGINES, SwitchRules(frozenset({1})), 0.5, SwitchOutcome.ONE_SIZE, None, id="one size is allowed"
        ),
        pytest.param(
            TAIL, {1: ENGINES[1]}, RULES, 0.5, SwitchOutcome.NOT_PREDICTED, None, id="no other size was measured"
        ),
        pytest.param(
            TAIL, {4: ENGINES[4]}, RULES, 0.5, SwitchOutcome.NOT_PREDICTED, None, id="this size was not measured"
        ),
        pytest.param(
            replace(TAIL, lengths=Survival([])), ENGINES, RULES, 0.5, SwitchOutcome.NOT_PREDICTED, None, id="no length"
        ),
        pytest.param(
            TAIL, FULL_ENGINES, RULES, 0.5, SwitchOutcome.KV_CACHE_FULL, None, id="other caches are too small"
        ),
        pytest.param(
            TAIL, BUSY_ENGINES, RULES, 0.5, SwitchOutcome.KV_CACHE_FULL, None, id="others run fewer responses together"
        ),
        pytest.param(
            replace(TAIL, closed=frozenset({(1, 2), (1, 4)})),
            ENGINES,
            RULES,
            0.5,
            SwitchOutcome.NO_GAIN,
            None,
            id="both pairs are closed",
        ),
        pytest.param(
            machine((1, 0, 1, 0)),
            ENGINES,
            SwitchRules(frozenset({1, 2})),
            0.5,
            SwitchOutcome.SWITCHED,
            2,
            id="allowed sizes",
        ),
        pytest.param(
            TAIL, ENGINES, SwitchRules(RULES.sizes, min_gain=0.9), 0.5, SwitchOutcome.NO_GAIN, None, id="a high margin"
        ),
    ],
)
def test_the_decision(snapshot, engines, rules, fixed, expected, target):
    decision = decide(snapshot, engines, costs(fixed), rules)
    assert decision.outcome is expected
    assert decision.target == target


@given(st.integers(1, 200), st.integers(1, 50_000), st.integers(1, 500), st.integers(100, 100_000), st.integers(1, 64))
def test_responses_that_do_not_fit_take_turns(batch, context, steps, kv_tokens, places):
    """Nothing is faster for it, and what fits is as fast as ever."""
    one = replace(ENGINES[1], kv_tokens=kv_tokens, max_running=places)
    seconds, alone = one.decode(batch, context, steps), one.latency.decode(batch, context, steps)
    if batch <= places and context + batch * steps <= kv_tokens:
        assert seconds == alone
    assert seconds >= 0.95 * alone
    assert one.decode(batch, context, steps) <= replace(one, kv_tokens=max(1, kv_tokens // 2)).decode(
        batch, context, steps
    ) * (1 + 1 / batch)


def test_a_decision_tells_what_it_predicts():
    decision = decide(TAIL, ENGINES, costs(0.5), RULES)
    assert decision.state is State.MIGRATE
    assert decision.seconds == pytest.approx(0.5)
    assert 0 < decision.gain < decision.without
    kept = decide(ALIGNED, ENGINES, costs(0.5), RULES)
    assert kept.without > decision.without


@pytest.mark.parametrize(("byte", "state"), [(0.0, State.MIGRATE), (1.0, State.RECOMPUTE)])
def test_state_goes_the_cheaper_way(byte, state):
    assert decide(TAIL, ENGINES, costs(0.5, byte), RULES).state is state


def test_a_race_that_ends_soon_has_no_tail():
    """Of eight responses two win, and the others are stopped then."""
    replicas = tuple(tuple(Running(100, 900, group) for group in (place, 4 + place)) for place in range(4))
    plain = MachineSnapshot(1, ACCELERATORS, replicas, Survival(LENGTHS, [900] * 8), LIMIT)
    race = replace(plain, groups=[OpenGroup(1)] * 8, wanted=1)
    assert decide(plain, ENGINES, costs(2.0), RULES).outcome is SwitchOutcome.SWITCHED
    raced = decide(race, ENGINES, costs(2.0), RULES)
    assert raced.outcome is SwitchOutcome.NO_GAIN
    assert raced.without < decide(plain, ENGINES, costs(500), RULES).without / 2


def test_other_machines_of_a_size_that_is_not_allowed_win_places():
    """Each response has a sibling on another machine, and one of the two is kept."""
    replicas = tuple((Running(100, 900, group),) for group in range(4))
    race = replace(
        machine((1, 1, 1, 1)),
        replicas=replicas,
        groups=[OpenGroup(1)] * 4,
        wanted=4,
        elsewhere=(OtherEngine(2, tuple(Running(100, 900, group) for group in range(4))),),
    )
    decision = decide(race, ENGINES, costs(0.5), SwitchRules(frozenset({1, 4})))
    pairs = costs(0.5).table(ENGINES, ACCELERATORS)
    draws = draws_of(race, policy.MOST_DRAWS)
    assert decision.without == pytest.approx(fmean(play(race, draw, ENGINES, pairs) for draw in draws))


def test_a_switch_waits_for_a_response_that_ends_soon_in_a_large_fleet():
    """16 machines ended 800 responses; two are left here. One ends after 3 tokens: then it need not be migrated."""
    lengths = [903] * 400 + [4000] * 400
    two = replace(machine((), lengths=lengths), replicas=((Running(100, 900),), (Running(100, 900),), (), ()))
    rules = SwitchRules(frozenset({1, 4}), state=State.MIGRATE)
    assert decide(two, ENGINES, costs(0.0, byte=3e-7), rules).outcome is SwitchOutcome.LATER


def test_rules_are_checked():
    for wrong in ({"min_gain": 1.0}, {"min_gain": -0.1}, {"max_switches": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            SwitchRules(frozenset({1}), **wrong)


def test_looks_follow_ends_and_seconds():
    looks = LookCadence()
    assert not looks.is_due(0, 500, 0.0)
    assert looks.is_due(1, 500, 1.0)
    assert not looks.is_due(2, 500, 1.1)
    assert looks.is_due(2, 500, 1.6)
    assert looks.is_due(7, 500, 1.7)
    assert not looks.is_due(7, 500, 99.0)


machines = st.builds(
    lambda seed, size, count, low: machine(
        [count + Random(seed).randrange(3) for _ in range(ACCELERATORS // size)],
        size,
        low,
        [Random(seed + n).randrange(10, LIMIT) for n in range(40)],
    ),
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 30),
    st.integers(0, 5000),
)


@settings(max_examples=60, deadline=None)
@given(machines, st.floats(0, 20), st.floats(0, 1e-4))
def test_a_switch_is_never_predicted_worse_than_none(snapshot, fixed, byte):
    decision = decide(snapshot, ENGINES, costs(fixed, byte), RULES)
    if decision.outcome is SwitchOutcome.SWITCHED:
        assert decision.gain >= RULES.min_gain * decision.without
        assert decision.gain > policy.COST_SHARE * decision.seconds
    again = decide(snapshot, ENGINES, costs(fixed, byte), RULES)
    assert again == decision


@settings(max_examples=60, deadline=None)
@given(machines, st.integers(100, 400_000), st.integers(100, 400_000))
def test_caches_of_the_new_size_are_not_exceeded(snapshot, two, four):
    engines = {1: ENGINES[1], 2: engine(2, two), 4: engine(4, four)}
    decision = decide(snapshot, engines, costs(0.1), RULES)
    if decision.target is not None:
        held = sum(one.context for one in snapshot.running)
        most = FULL * engines[decision.target].kv_tokens * (ACCELERATORS // decision.target)
        assert held <= most


@settings(max_examples=40, deadline=None)
@given(machines, st.floats(0, 5), st.floats(0, 20), st.integers(0, 3))
def test_plans_become_slower_as_switches_cost_more(snapshot, fixed, more, switches):
    curve = load_curve(snapshot)

    def plan(cost):
        pairs = costs(cost).table(ENGINES, ACCELERATORS)
        return plan_switches(curve, snapshot.tensor_parallel, ENGINES, ACCELERATORS, pairs, switches)

    cheap, dear = plan(fixed), plan(fixed + more)
    slack = 1 + 1e-9
    assert cheap.never == dear.never
    assert cheap.wait <= dear.wait * slack
    assert dear.wait <= dear.never * slack
    assert bool(cheap.now) is bool(switches)
    for size, seconds in cheap.now.items():
        assert seconds + more <= dear.now[size] * slack
    switched = [decide(snapshot, ENGINES, costs(cost), RULES).outcome for cost in (fixed, fixed + more + 1000)]
    assert switched[1] is not SwitchOutcome.SWITCHED


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.integers(0, 3), st.floats(0, 3))
def test_a_stage_has_at_most_so_many_switches_and_loses_little(seed, size, most, fixed):
    random = Random(seed)
    past = [int(min(LIMIT, 50 + random.expovariate(1 / 600))) for _ in range(60)]
    asked = [Asked(100, int(min(LIMIT, 50 + random.expovariate(1 / 600)))) for _ in range(60)]
    price, rules = costs(fixed), SwitchRules(frozenset(ENGINES), max_switches=most)

    def choose(stage: Stage) -> int | None:
        return decide(stage.snapshot(past, (), LIMIT), ENGINES, price, rules).target

    pairs = price.table(ENGINES, ACCELERATORS)
    static = generate(asked, size, ENGINES, ACCELERATORS, pairs)
    ours = generate(asked, size, ENGINES, ACCELERATORS, pairs, choose)
    assert len(ours.switches) <= most
    assert ours.seconds <= 1.1 * static.seconds + fixed
    assert static == generate(asked, size, ENGINES, ACCELERATORS, pairs)


def test_responses_of_several_replicas_may_end_at_the_look_of_a_switch():
    asked = [Asked(100, 50), Asked(100, 50), Asked(100, 400)]
    result = generate(asked, 1, ENGINES, ACCELERATORS, costs(0.5).table(ENGINES, ACCELERATORS), lambda stage: 2)
    assert [switch.responses for switch in result.switches] == [1]


def test_a_tail_is_shortened_by_one_or_two_switches():
    """With the margin against waiting instead of never, there is no switch in any round."""
    random = Random(1)
    past, lengths = ([int(min(LIMIT, 50 + random.expovariate(1 / 900))) for _ in range(200)] for _ in range(2))
    price = costs(0.5)

    def choose(stage: Stage) -> int | None:
        return decide(stage.snapshot(past, (), LIMIT), ENGINES, price, RULES).target

    pairs, asked = price.table(ENGINES, ACCELERATORS), [Asked(100, length) for length in lengths]
    static = {size: generate(asked, size, ENGINES, ACCELERATORS, pairs).seconds for size in ENGINES}
    ours = generate(asked, 1, ENGINES, ACCELERATORS, pairs, choose)
    assert 1 <= len(ours.switches) <= 2
    assert ours.seconds < 0.97 * min(static.values())


def test_a_look_at_more_responses_costs_little_more():
    """The plan does not grow with the responses: 16 x as many cost less than 8 x as much."""
    few, many = (partial(decide, machine((count,) * 4), ENGINES, costs(500.0), RULES) for count in (8, 128))
    assert growth(few, many) < 8
