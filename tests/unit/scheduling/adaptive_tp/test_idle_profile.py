"""Idle profiles: which machine measures which layout during an update, and when none does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.coordinator.generation.engine_observer import samples_of
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample, fit_latency, undisplaced
from rljob_runtime.protocols import EngineStats, KvSize, KvStats, LoadTiming, ProfileLimits
from rljob_runtime.scheduling.adaptive_tp.idle_profile import (
    LEAST_SECONDS,
    LEEWAY,
    MOST_LOADS,
    MOST_TOKENS,
    MOST_TRIES,
    SHARE,
    SLOW,
    STEPS,
    IdleOutcome,
    IdleProfile,
    Rest,
    RestingMachine,
    is_enough,
    loads_of,
    plan_profiles,
    ways,
)
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part, SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import record_probes, record_visit

PROFILED, NOTHING_NEW = IdleOutcome.PROFILED, IdleOutcome.NOTHING_NEW
NOT_PREDICTED, TOO_SHORT = IdleOutcome.NOT_PREDICTED, IdleOutcome.TOO_SHORT
LONG = Rest((300.0, 200.0, 400.0))
WAY = SLOW * sum(PRIORS[part] for part in (Part.SLEEP, Part.LOAD, Part.SLEEP, Part.WAKE)) + LEAST_SECONDS
BUILD, WAKE = SLOW * PRIORS[Part.BUILD], SLOW * PRIORS[Part.WAKE]


def resting(name: str = "a", size: int = 1, sizes: tuple[int, ...] = (1, 2, 4), **more) -> RestingMachine:
    """Engines that its processes ever had are kept, unless `built` says otherwise."""
    ran = more.pop("ran", (size,))
    return RestingMachine(name, size, sizes, ran, **{"built": ran, **more})


def one(machine: RestingMachine, known: tuple[int, ...] = (1,), rest: Rest = LONG) -> IdleProfile:
    return plan_profiles([machine], known, rest, SwitchCosts())[machine.name]


@pytest.mark.parametrize(
    ("machine", "known", "rest", "outcome", "size"),
    [
        (resting(), (1,), LONG, PROFILED, 2),
        (resting(), (1, 2), LONG, PROFILED, 4),
        (resting(size=4), (4,), LONG, PROFILED, 1),
        (resting(ran=(1, 2)), (1,), LONG, PROFILED, 2),
        (resting(ran=(1, 2)), (1, 2, 4), LONG, PROFILED, 4),
        (resting(ran=(1, 2, 4), built=(1, 4)), (1, 2, 4), LONG, NOTHING_NEW, None),
        (resting(ran=(1, 2, 4)), (1, 2, 4), LONG, NOTHING_NEW, None),
        (resting(sizes=(1,)), (1,), LONG, NOTHING_NEW, None),
        (resting(sizes=(1, 4)), (1,), LONG, PROFILED, 4),
        (resting(tries={2: MOST_TRIES}), (1,), LONG, PROFILED, 4),
        (resting(tries={2: MOST_TRIES - 1}), (1,), LONG, PROFILED, 2),
        (resting(), (1,), Rest(()), NOT_PREDICTED, None),
        (resting(), (1,), Rest((300.0, 20.0)), TOO_SHORT, None),
        (resting(), (1,), Rest((20.0, *[300.0] * 4)), PROFILED, 2),
        (resting(), (1,), Rest((300.0, 20.0), build_seconds=1.0), PROFILED, 2),
        (resting(), (1,), Rest(((WAY + BUILD + 0.1) / SHARE,)), PROFILED, 2),
        (resting(), (1,), Rest(((WAY + BUILD - 0.1) / SHARE,)), TOO_SHORT, None),
        (resting(ran=(1, 4)), (1,), Rest(((WAY + WAKE + 0.1) / SHARE,)), PROFILED, 4),
        (resting(), (1,), Rest(((WAY + BUILD + 0.1) / SHARE,), delays=1), TOO_SHORT, None),
        (resting(), (1,), Rest((2 * (WAY + BUILD + 0.1) / SHARE,), delays=1), PROFILED, 2),
    ],
    ids=[
        "the smallest of two that nothing is known of",
        "one that nothing is known of comes first",
        "downward",
        "it ran it, and nothing came of it",
        "others ran it, this one did not",
        "all ran, and one was discarded since",
        "it ran all",
        "one size",
        "a size that it refused is not among its sizes",
        "nothing came of too many visits",
        "nothing came of some visits",
        "no update has ended yet",
        "the shortest update counts",
        "of the last ones",
        "engines are built quickly here",
        "just enough for a build",
        "just too short for a build",
        "too short for a build, enough for engines that it has",
        "a stage waited for a profile",
        "a stage waited, and updates are twice as long",
    ],
)
def test_a_resting_machine_measures_what_is_new_if_there_is_time(
    machine: RestingMachine, known: tuple[int, ...], rest: Rest, outcome: IdleOutcome, size: int | None
) -> None:
    decision = one(machine, known, rest)
    assert (decision.outcome, decision.size) == (outcome, size)


def test_a_profile_leaves_a_part_of_the_update() -> None:
    assert one(resting()).until < 0.75 * 200.0


def test_machines_share_the_layouts() -> None:
    machines = [resting(name) for name in "dcba"]
    plans = plan_profiles(machines, (1,), LONG, SwitchCosts())
    assert {name: plan.size for name, plan in sorted(plans.items())} == {"a": 2, "b": 4, "c": 2, "d": 4}


SIZES = st.sets(st.sampled_from([1, 2, 4, 8]), min_size=1)
MACHINES = st.lists(
    st.builds(
        RestingMachine,
        st.sampled_from("abcdef"),
        st.sampled_from([1, 2, 4, 8]),
        SIZES,
        SIZES,
        st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 4)),
    ),
    unique_by=lambda machine: machine.name,
)
RESTS = st.builds(Rest, st.lists(st.floats(0, 1000), max_size=6), st.integers(0, 3), st.none() | st.floats(0, 200))
MEASURED = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.sampled_from([4, 8]), st.sampled_from(list(Part)), st.floats(0, 50)),
    max_size=8,
)


@given(MACHINES, SIZES, RESTS, MEASURED)
def test_a_visit_ends_in_time_and_is_to_a_candidate(
    machines: list[RestingMachine], known: set[int], rest: Rest, measured: list[tuple[int, int, Part, float]]
) -> None:
    costs = SwitchCosts()
    for start, target, part, seconds in measured:
        costs.record(start, target, part, 1, seconds)
    plans = plan_profiles(machines, known, rest, costs)
    assert plans == plan_profiles(machines[::-1], known, rest, costs), "their order says nothing"
    assert plans.keys() == {machine.name for machine in machines}
    for machine in machines:
        plan = plans[machine.name]
        assert (plan.size is not None) == (plan.outcome is PROFILED)
        if plan.size is None:
            continue
        assert plan.size in machine.sizes
        assert plan.size != machine.tensor_parallel
        there, back = ways(machine, plan.size, rest, costs)
        assert SLOW * there + LEAST_SECONDS <= plan.until + 1e-9
        assert plan.until + SLOW * back <= SHARE * min(rest.updates[-4:]) + 1e-9


@given(MACHINES, SIZES)
def test_no_layout_is_measured_twice_while_another_is_never(machines: list[RestingMachine], known: set[int]) -> None:
    same = [RestingMachine(machine.name, 1, (1, 2, 4, 8), (1,)) for machine in machines]
    visits = Counter(plan.size for plan in plan_profiles(same, known, LONG, SwitchCosts()).values())
    new = {2, 4, 8} - known or {2, 4, 8}
    assert max((visits[size] for size in new), default=0) - min((visits[size] for size in new), default=0) <= 1


@given(st.integers(1, 500), st.integers(1, 200_000), st.integers(0, 10**6), st.integers(0, 500))
def test_loads_fit_the_engine_and_cost_little(batch: int, context: int, kv_tokens: int, most: int) -> None:
    stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, kv_tokens=kv_tokens, max_running=most)
    loads = loads_of(ProfileLimits(batch, context, 1.0), stats)
    assert len(loads) <= MOST_LOADS
    for load in loads:
        assert load.batch <= min(batch, most or batch)
        assert load.context + STEPS + LEEWAY <= context
        assert load.batch * (load.context + STEPS + LEEWAY) <= min(kv_tokens or MOST_TOKENS, MOST_TOKENS)


def timing(batch: int, prompt: int) -> LoadTiming:
    context = batch * (prompt + 5.0)
    return LoadTiming(batch, prompt, 0.01 * batch, STEPS, 0.01 + 1e-3 * batch + 1e-6 * context, context)


CORNERS = [timing(batch, prompt) for batch in (1, 32) for prompt in (16, 2000)]


def test_a_latency_is_fitted_to_corners_and_to_nothing_less() -> None:
    assert is_enough(CORNERS)
    assert not is_enough(CORNERS[:2]), "one batch would make a latency model that no batch changes"
    assert not is_enough(CORNERS[::2])
    latency = fit_latency([Speed(stretches=tuple(samples_of(CORNERS)))])
    assert latency is not None
    assert latency.step(16, 16_000) == pytest.approx(0.01 + 16e-3 + 16e-3, rel=0.05)
    assert latency.prefill_token_seconds > 0


def test_a_prefill_too_short_for_the_clock_is_no_sample() -> None:
    samples = samples_of([replace(one, prefill_seconds=0.0) for one in CORNERS])
    assert [one.prompt_tokens for one in samples] == [0] * len(CORNERS)
    assert fit_latency([Speed(stretches=tuple(samples))]) is not None


def test_rounds_displace_profiles_near_their_batches_only() -> None:
    own = SpeedSample(400, 20, 10_000.0, 400 * 0.1)
    kept = undisplaced([*samples_of(CORNERS), own])
    assert {one.batch for one in kept if one.profiled and not one.prompt_tokens} == {1}
    assert sum(bool(one.prompt_tokens) for one in kept) == len(CORNERS), "no prefill was observed"
    latency = fit_latency([Speed(stretches=tuple(samples_of(CORNERS))), Speed(stretches=(own,))])
    assert latency is not None
    assert latency.step(20, 10_000) == pytest.approx(0.1, rel=0.1)


def test_a_speed_keeps_the_mark_of_profiles_in_the_store() -> None:
    speed = Speed(1, 100, 4, tuple(samples_of(CORNERS)))
    assert Speed.from_json(speed.to_json()) == speed
    assert all(one.profiled for one in speed.stretches)
    assert speed.decode_without_loans == (), "no step of a round"
    old = SpeedSample(1, 1, 0, 1.0)
    text = Speed(stretches=(old,)).to_json().replace(', "profiled": false', "")
    assert "profiled" not in text
    assert Speed.from_json(text).stretches == (old,)


def test_a_visit_teaches_both_directions_of_a_switch() -> None:
    costs = SwitchCosts()
    for _ in range(3):
        record_visit(costs, 1, 4, {"release": 1.0, "build": 40.0, "load": 2.0}, {"release": 3.0, "start": 5.0})
    assert [costs.unit(1, 4, part) for part in (Part.SLEEP, Part.BUILD, Part.LOAD)] == [1.0, 40.0, 2.0]
    assert [costs.unit(4, 1, part) for part in (Part.SLEEP, Part.WAKE)] == [3.0, 5.0]
    assert costs.unit(4, 1, Part.DRAIN) == PRIORS[Part.DRAIN]


@pytest.mark.parametrize(
    ("kv", "busiest"),
    [pytest.param(None, 400.0, id="even shares"), pytest.param(KvSize(2, 8, 0), 800.0, id="two heads on four ranks")],
)
def test_a_visit_teaches_copies_of_kv_by_its_busiest_engine(kv: KvSize | None, busiest: float) -> None:
    costs = SwitchCosts()
    costs.kv = kv
    little, most = KvStats(10, 160, 9.0, 10, 80, 9.0), KvStats(100, 1600, 4.0, 96, 768, 3.0)
    record_probes(costs, 1, 4, [KvStats(), little, most])
    assert costs._pairs[4, 1].of(Part.EXPORT) == pytest.approx([4.0 / busiest])
    assert costs._pairs[1, 4].of(Part.IMPORT) == pytest.approx([3.0 / 768])
    assert costs._pairs[1, 4].of(Part.EXPORT) == (), "engines of the visited size exported nothing on the way there"


@pytest.mark.parametrize("probes", [[], [KvStats()]], ids=["no engine", "none that moves KV"])
def test_a_visit_without_copies_teaches_nothing_of_them(probes: list[KvStats]) -> None:
    costs = SwitchCosts()
    record_probes(costs, 1, 4, probes)
    assert not costs.measured
