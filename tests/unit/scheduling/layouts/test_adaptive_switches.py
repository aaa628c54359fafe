"""Adaptive switches: from what a coordinator observes in a look to the decision for each machine."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.coordinator.generation.observed_engines import UNBOUNDED, sized_engines
from rljob_runtime.perf_model.hardware import A40
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample
from rljob_runtime.perf_model.roofline import roofline
from rljob_runtime.protocols import KvExport, KvSize, KvStats
from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import MAX_RUNNING, OtherEngine, Running
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part, State, SwitchCosts
from rljob_runtime.scheduling.layouts.adaptive_switches import AdaptiveSwitches, snapshot_of
from rljob_runtime.scheduling.layouts.layout_switch import (
    LayoutSwitch,
    SwitchableMachine,
    SwitchLook,
    most_telling,
    record_export,
    record_import,
    record_parts,
    record_prefill,
    with_responses,
)
from rljob_runtime.scheduling.layouts.prefill_clock import PrefillClock
from rljob_runtime.scheduling.lending.gain import OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import ENGINES, LENGTHS, LIMIT

RULES = SwitchRules(frozenset(ENGINES))
PART_NAMES = {"stop": 0.2, "release": 0.4, "start": 0.6, "load": 0.8}


def seen(size: int, slow: float = 1.0, steps: float = 100.0) -> Speed:
    """What polls show of an engine of this size in a round."""
    latency = ENGINES[size].latency
    samples = [SpeedSample(steps, batch, 0.0, slow * latency.decode(batch, 0, steps)) for batch in (1, 8, 64)]
    return Speed(4 // size, 10**7, 64, (*samples, SpeedSample(1.0, 4, 0.0, latency.step(4, 0) + 0.01, 1000)))


SPEEDS = {size: (seen(size),) for size in ENGINES}
ONE = sized_engines({1: SPEEDS[1]})
IDLE = sized_engines({**SPEEDS, 4: (Speed(1, 10, 64),)})


def look(counts=(1, 1, 1, 1), elsewhere=(), **machine) -> SwitchLook:
    """A machine `a` with so many responses on each of its engines, and one `b` of size 2."""
    running = {f"a/{place}": (Unfinished(100, 900 + place),) * count for place, count in enumerate(counts)}
    others = {f"b/{place}": (Unfinished(50, 500),) * count for place, count in enumerate(elsewhere)}
    lengths = ExpectedLengths(Survival(LENGTHS, [900] * sum(counts)), LIMIT)
    count = sum(counts) + sum(elsewhere)
    round_ = RoundSnapshot([], [], lengths, [OpenGroup(count)], 1, 0, None, {**running, **others})
    view = SwitchableMachine("a", 1, (2, 4), {name: {} for name in running})
    sizes = dict.fromkeys(running, 1) | dict.fromkeys(others, 2)
    return SwitchLook([replace(view, **machine)], round_, sizes, sized_engines(SPEEDS), SwitchCosts())


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        pytest.param(look(), SwitchOutcome.SWITCHED, id="a tail"),
        pytest.param(look(waiting=1), SwitchOutcome.WAITING, id="requests wait for a launch"),
        pytest.param(look(queued=1), SwitchOutcome.SWITCHED, id="requests wait in an engine"),
        pytest.param(look(sizes=()), SwitchOutcome.ONE_SIZE, id="it refused the other sizes"),
        pytest.param(look(switches=3), SwitchOutcome.MAX_SWITCHES, id="it switched often"),
        pytest.param(look(closed=frozenset({(1, 2), (1, 4)})), SwitchOutcome.NO_GAIN, id="pairs are closed"),
        pytest.param(look((0, 0, 0, 0), (3,)), SwitchOutcome.IDLE, id="only another machine generates"),
        pytest.param(
            replace(look(), engines=ONE),
            SwitchOutcome.NOT_PREDICTED,
            id="one size was observed",
        ),
        pytest.param(
            replace(look(), engines=IDLE, machines=look(sizes=(4,)).machines),
            SwitchOutcome.NOT_PREDICTED,
            id="the other size generated nothing yet",
        ),
    ],
)
def test_the_decision_of_a_look(seen, outcome):
    (decision,) = AdaptiveSwitches(RULES).decide(seen).values()
    assert decision.outcome is outcome
    assert (decision.target is not None) == (outcome is SwitchOutcome.SWITCHED)
    if decision.target is not None:
        assert decision.state is State.RECOMPUTE
        assert decision.prefill_seconds > 0


@pytest.mark.parametrize(
    ("built", "rounds", "outcome"),
    [
        pytest.param({1, 2, 4}, 1, SwitchOutcome.SWITCHED, id="all are built"),
        pytest.param({1}, 1, SwitchOutcome.NO_GAIN, id="no round after this one"),
        pytest.param({1}, 100, SwitchOutcome.SWITCHED, id="later rounds use them too"),
    ],
)
def test_a_build_must_be_repaid(built, rounds, outcome):
    found = replace(look(built=frozenset(built)), rounds=rounds, costs=SwitchCosts({Part.BUILD: 90.0}))
    (decision,) = AdaptiveSwitches(RULES).decide(found).values()
    assert decision.outcome is outcome
    assert (decision.unpaid > 60) == (rounds > 1)


def test_each_machine_of_a_look_has_its_decision():
    both = look((1, 1, 1, 1), (2, 2))
    other = SwitchableMachine("b", 2, (), {"b/0": {}, "b/1": {}})
    found = AdaptiveSwitches(RULES).decide(replace(both, machines=[*both.machines, other]))
    assert {name: one.outcome for name, one in found.items()} == {
        "a": SwitchOutcome.SWITCHED,
        "b": SwitchOutcome.ONE_SIZE,
    }


def test_a_snapshot_has_the_machine_and_what_runs_elsewhere():
    found = snapshot_of(look((2, 0, 1, 0), (1, 2)).machines[0], look((2, 0, 1, 0), (1, 2)))
    assert (found.tensor_parallel, found.accelerators, found.count) == (1, 4, 3)
    assert found.replicas == ((Running(100, 900),) * 2, (), (Running(100, 902),), ())
    assert found.elsewhere == (OtherEngine(2, (Running(50, 500),)), OtherEngine(2, (Running(50, 500),) * 2))
    assert (found.max_tokens, found.wanted, list(found.groups)) == (LIMIT, 1, [OpenGroup(6)])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.lists(st.integers(0, 5), max_size=3))
def test_every_running_response_is_in_the_snapshot_once(counts, elsewhere):
    found = snapshot_of(look(counts, elsewhere).machines[0], look(counts, elsewhere))
    assert found.count == sum(counts)
    assert [len(one.running) for one in found.elsewhere] == elsewhere


@pytest.mark.parametrize(
    ("speeds", "factor"),
    [
        pytest.param((seen(1), seen(1)), 1.0, id="as before"),
        pytest.param((seen(1), seen(1, slow=2.0)), 2.0, id="this round is slower"),
        pytest.param((seen(1), seen(1, slow=2.0, steps=5.0)), None, id="a few slow steps"),
        pytest.param((seen(1, slow=2.0),), 2.0, id="the first round"),
    ],
)
def test_the_model_of_a_size_follows_surprises_of_the_round(speeds, factor):
    expected, found = ENGINES[1].latency.step(8, 0), sized_engines({1: speeds})[1].latency.step(8, 0)
    if factor is None:
        assert found < 1.3 * expected
    else:
        assert found == pytest.approx(factor * expected, rel=0.05)


def test_an_unmeasured_size_has_no_engine_and_an_unknown_cache_no_bound():
    speeds = {1: (seen(1), Speed()), 2: (Speed(2, 99, 8),), 4: (replace(seen(4), kv_tokens=0),)}
    found = sized_engines(speeds)
    assert {size: engine.kv_tokens for size, engine in found.items()} == {1: 10**7, 4: UNBOUNDED}


def test_prefill_is_not_free_before_it_has_been_measured():
    never = Speed(1, 1 << 40, 64, (SpeedSample(100, 4, 0.0, 0.5), SpeedSample(100, 1, 0.0, 0.5)))
    latency = sized_engines({1: (never,)})[1].latency
    assert latency.prefill(1000, 1000**2) == pytest.approx(1000 * latency.step(4, 0.0) / 4)
    shaped = sized_engines({1: (replace(never, square_tokens=0.001),)})[1].latency
    assert shaped.prefill(1000, 1000**2) == pytest.approx(2 * latency.prefill(1000, 1000**2))


@pytest.mark.parametrize("size", [2, 4])
def test_all_reduces_are_no_part_of_attention(size):
    """A token of a wide engine takes longer than its share of the work, and a squared token does not."""
    latencies = {one: replace(roofline(QWEN2_5_7B, A40, one), prefill_seconds=0.0) for one in (1, size)}
    assert latencies[size].prefill_token_seconds > 1.15 * latencies[1].prefill_token_seconds / size
    tokens = 4 * 1000

    def seen(latency):
        start = SpeedSample(1, 4, tokens, latency.prefill(tokens, 4 * 10**6), tokens, prompt_squares=4 * 10**6)
        loads = [(batch, batch * mean) for batch in (1, 4, 32) for mean in (200, 3000)]
        decode = tuple(SpeedSample(100, batch, context, 100 * latency.step(batch, context)) for batch, context in loads)
        return Speed(1, 1 << 40, 64, (start, *decode), square_tokens=QWEN2_5_7B.square_tokens)

    found = sized_engines({one: (seen(latency),) for one, latency in latencies.items()})
    for one, latency in latencies.items():
        assert found[one].latency.prefill(32_000, 32_000**2) == pytest.approx(
            latency.prefill(32_000, 32_000**2), rel=0.06
        )


KV = KvSize(heads=2, head_bytes=400, room_bytes=800_000)


def test_measured_parts_become_costs():
    costs, made = SwitchCosts(), LayoutSwitch("a", 1, 4, seconds={**PART_NAMES, "prefill": 9.0})
    for _ in range(3):
        record_parts(costs, made)
    parts = [costs.unit(1, 4, part) for part in (Part.DRAIN, Part.SLEEP, Part.WAKE, Part.LOAD)]
    assert parts == [0.2, 0.4, 0.6, 0.8]
    assert costs.unit(1, 4, Part.PREFILL) == PRIORS[Part.PREFILL]


def test_a_build_is_no_wake():
    costs = SwitchCosts()
    for _ in range(3):
        record_parts(costs, LayoutSwitch("a", 1, 4, seconds={"build": 40.0}))
    assert (costs.unit(1, 4, Part.BUILD), costs.unit(1, 4, Part.WAKE)) == (40.0, PRIORS[Part.WAKE])


FORESEEN = SwitchDecision(SwitchOutcome.SWITCHED, 4, State.RECOMPUTE, prefill_seconds=2.0)


def prefilled(seconds: float | None, left: bool) -> PrefillClock:
    """A clock that measured these seconds. `left`: one of two responses left before its first token."""
    launches = [Launch(TrajectoryKey(PromptKey(0, index), 0), Lease("a/0", 2)) for index in range(2)]
    clock = PrefillClock(launches, 10.0)
    for launch in launches[: 0 if seconds is None else 1 if left else 2]:
        clock.record_token(launch.key, 10.0 + (seconds or 0.0))
    clock.retain(lambda key: None)
    return clock


@pytest.mark.parametrize(
    ("decision", "exported", "reached", "left", "factor"),
    [
        (FORESEEN, 0, 4, False, 1.5),
        (replace(FORESEEN, prefill_seconds=0.0), 0, 4, False, PRIORS[Part.PREFILL]),
        (replace(FORESEEN, state=State.MIGRATE), 64, 4, False, PRIORS[Part.PREFILL]),
        (replace(FORESEEN, state=State.MIGRATE), 0, 4, False, 1.5),
        (None, 0, 4, False, PRIORS[Part.PREFILL]),
        (FORESEEN, 0, 1, False, PRIORS[Part.PREFILL]),
        (FORESEEN, 0, 4, True, PRIORS[Part.PREFILL]),
    ],
    ids=[
        "computed again",
        "not predicted",
        "moved",
        "a refused export",
        "forced",
        "a refused size",
        "a part of the responses",
    ],
)
def test_prefill_is_measured_against_its_prediction(decision, exported, reached, left, factor):
    costs = SwitchCosts()
    for _ in range(3):
        switch = LayoutSwitch("a", 1, 4, decision, exported_tokens=exported, reached=reached)
        record_prefill(costs, switch, prefilled(3.0, left))
        assert switch.seconds == {"import" if exported else "prefill": 3.0}, "it is reported in any case"
    assert costs.unit(1, 4, Part.PREFILL) == factor


def test_a_prefill_without_a_token_has_no_seconds():
    switch = LayoutSwitch("a", 1, 4, FORESEEN, reached=4)
    record_prefill(SwitchCosts(), switch, prefilled(None, True))
    assert switch.seconds == {}


def receipt(tokens: int, seconds: float) -> KvExport:
    return KvExport("file", {TrajectoryKey(PromptKey(0, 0), 0): tokens}, tokens * 800, seconds)


@pytest.mark.parametrize(
    ("start", "kv", "busiest"),
    [(1, KV, 800), (2, KV, 400), (4, KV, 400), (4, None, 200)],
    ids=["one accelerator", "a head each", "two hold the same head", "unknown: even shares"],
)
def test_what_an_export_takes_is_measured_on_the_busiest_accelerator(start, kv, busiest):
    costs, switch = SwitchCosts(), LayoutSwitch("a", start, 8)
    for _ in range(3):
        record_export(costs, switch, [receipt(64, 1.0), receipt(128, 2.0)], kv)
    assert costs.unit(start, 8, Part.EXPORT) == pytest.approx(2.0 / (128 * busiest))
    assert (switch.exported_tokens, switch.exported_bytes, switch.seconds["export"]) == (192, 192 * 800, 2.0)


@pytest.mark.parametrize(("reached", "measured"), [(4, True), (1, False)])
def test_what_an_import_takes_is_measured_in_the_size_that_was_meant(reached, measured):
    costs, switch = SwitchCosts(), LayoutSwitch("a", 1, 4, exported_tokens=100, exported_bytes=80_000, reached=reached)
    taken = [KvStats(imported_tokens=20, imported_bytes=1000, import_seconds=9.0), KvStats(0, 0, 0.0, 30, 2000, 3.0)]
    for _ in range(3):
        record_import(costs, switch, taken)
    assert costs.unit(1, 4, Part.IMPORT) == (3.0 / 2000 if measured else PRIORS[Part.IMPORT])
    assert (switch.imported_tokens, switch.moved_bytes) == (50, 40_000)


def test_the_kv_of_engines_becomes_a_price_and_a_bound():
    speeds = {size: (Speed(1, 1 << 40, 64, (SpeedSample(100, 4, 0.0, 0.5),)),) for size in (1, 4)}
    engines = sized_engines(speeds, KV)
    assert {size: one.kv_token_bytes for size, one in engines.items()} == {1: 800, 4: 400}
    assert {one.kv_room_tokens for one in engines.values()} == {1000}
    assert {one.kv_token_bytes for one in sized_engines(speeds).values()} == {None}


def test_responses_are_those_of_the_machines_replicas():
    keys = [TrajectoryKey(PromptKey(0, index), 0) for index in range(3)]
    held = [(Launch(key, Lease(f"a/{index % 2}", 1)), 7 + index) for index, key in enumerate(keys)]
    held.append((Launch(TrajectoryKey(PromptKey(1, 0), 0), Lease("b/0", 1)), 5))
    (found,) = with_responses([SwitchableMachine("a", 1, (2,), {"a/0": {}, "a/1": {}}, queued=2)], held, 3)
    assert found.engines == {"a/0": {keys[0]: 7, keys[2]: 9}, "a/1": {keys[1]: 8}}
    assert (found.waiting, found.queued) == (3, 2)


def test_what_happened_says_most_about_a_round():
    outcomes = [SwitchDecision(one) for one in SwitchOutcome]
    assert most_telling(reversed(outcomes)) == outcomes[0] == SwitchDecision(SwitchOutcome.SWITCHED)
    assert most_telling([]) is None
    gains = [SwitchDecision(SwitchOutcome.NO_GAIN, gain=gain) for gain in (None, 1.0, 2.0)]
    assert most_telling(gains) == gains[2]


def test_totals_that_did_not_grow_measure_no_import():
    """Those of a process that came later are no continuation of those before."""
    costs, switch = SwitchCosts(), LayoutSwitch("a", 1, 4, reached=4)
    record_import(costs, switch, [KvStats(0, 0, 0.0, -30, -2000, -3.0), KvStats()])
    assert (switch.imported_tokens, costs.measured) == (0, 0)


@pytest.mark.parametrize(
    ("seen", "kv_tokens", "max_running"),
    [
        ([(5000, 64)], 5000, 64),
        ([(5000, 64), (4000, 32)], 4000, 32),
        ([(5000, 64), (0, 0)], 5000, 64),
        ([(0, 0)], UNBOUNDED, MAX_RUNNING),
    ],
    ids=["one round", "the last one counts", "the last one did not see it", "unknown bounds nothing"],
)
def test_an_engine_holds_and_runs_as_much_as_it_was_seen_to(seen, kv_tokens, max_running):
    speeds = tuple(Speed(1, kv, most, (SpeedSample(100, 4, 0.0, 0.5),)) for kv, most in seen)
    found = sized_engines({1: speeds}, KV)[1]
    assert (found.kv_tokens, found.max_running) == (kv_tokens, max_running)
    assert (found.kv_token_bytes, found.kv_room_tokens) == (KV.accelerator_bytes(1), KV.room_tokens)
    free = sized_engines({1: speeds})[1]
    assert (free.kv_token_bytes, free.kv_room_tokens) == (None, inf)
