"""`rljob bench pat --real`: rounds by turns on the same lengths, and what is made of what they show."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api.status import LayoutForecast, RoundReport
from rljob_bench.lib import memory_watch
from rljob_bench.lib.engine_switch import Restart
from rljob_bench.lib.memory_watch import MemoryWatch
from rljob_bench.lib.replayed_job import generated_lengths
from rljob_bench.lib.turns import BlockLengths, Glance, Ordered, Played, SizedTarget, Turn, Turns, Way
from rljob_bench.pat_real import QUICK, SIZES, Plan, Setting, job_of, pat_real
from rljob_bench.switch_figures import SwitchExperiment, blocks_of, figures, other_seconds, rows, state_pairs
from rljob_bench.switch_predictions import Gain, gains_of, prediction_figures, stretches_of
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, SwitchableMachine, SwitchLook
from rljob_runtime.scheduling.lending.gain import OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import ENGINES, LENGTHS, LIMIT, costs
from tests.support.kv_job import Run

RULES = SwitchRules(frozenset(SIZES))
TRAINED: Any = None


def key(index: int, sample: int = 0) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, index), sample)


def report(round_: int, size: int, seconds: float = 1.0, **more: Any) -> RoundReport:
    return RoundReport(round=round_, tensor_parallel_size=size, generation_seconds=seconds, **more)


def test_each_way_takes_each_place_of_a_block_in_turn() -> None:
    turns = Setting(4, 4, 3, planned=2, ordered=2).turns()
    assert [(one.block, one.way.value, one.size) for one in turns] == [
        (0, "static", 2), (0, "static", 1), (1, "adaptive", None),
        (1, "static", 1), (2, "adaptive", None), (1, "static", 2),
        (3, "adaptive", None), (2, "static", 2), (2, "static", 1),
        (3, "static", 2), (3, "static", 1),
        (4, "planned", 1), (5, "planned", 1), (4, "static", 1), (5, "static", 1),
        (6, "ordered", 1), (7, "ordered", 2),
    ]  # fmt: skip
    for count in (3, 6):
        places = Counter[tuple[Any, ...]]()
        for number, one in enumerate(Setting(4, 4, count).turns()):
            if one.block > 0:
                places[one.way, one.size, number % 3] += 1
        assert len(places) == 9
        assert set(places.values()) == {count // 3}


@pytest.mark.parametrize("blocks", range(1, 8))
def test_a_round_that_is_decided_is_the_first_with_its_lengths(blocks: int) -> None:
    known = set[int]()
    decided = 0
    for one in Setting(4, 4, blocks, planned=2, ordered=1).turns():
        if one.way in (Way.ADAPTIVE, Way.PLANNED):
            assert one.block not in known, "a policy knows the lengths of all rounds that the job has closed"
            decided += 1
        known.add(one.block)
    assert decided == blocks + 2


def test_a_round_that_is_decided_has_a_static_one_of_its_lengths() -> None:
    turns = Setting(4, 4, 3, planned=2).turns()
    static = {(one.block, one.size) for one in turns if one.way is Way.STATIC}
    assert static >= {(one.block, size) for one in turns if one.way is Way.ADAPTIVE for size in SIZES}
    assert static >= {(one.block, one.size) for one in turns if one.way is Way.PLANNED}


def test_rounds_of_a_block_have_the_same_lengths_prompt_by_prompt() -> None:
    turns = [Turn(1, Way.ADAPTIVE), Turn(1, Way.STATIC, 1), Turn(2, Way.STATIC, 1)]
    workload = generated_lengths(0, 1000)
    lengths = BlockLengths(workload, 2, 3, turns)
    rounds = [
        [lengths.of(key(prompt, sample), version) for prompt in prompts for sample in range(3)]
        for version, prompts in ((7, (40, 3)), (8, (5, 90)), (9, (1, 2)))
    ]
    assert rounds[0] == rounds[1] != rounds[2]
    expected = [one.output_tokens for number in (2, 3) for one in workload.prompt(0, number, 3).responses]
    assert rounds[0] == expected
    assert lengths.of(key(3, 2), 7) == rounds[0][5], "a response that goes on elsewhere keeps its length"


def test_a_round_without_a_size_begins_in_the_best_predicted_one() -> None:
    turns = Turns([Turn(0, Way.STATIC, 2), Turn(1, Way.ADAPTIVE), Turn(2, Way.ADAPTIVE)], RULES)
    assert turns.size() == 2
    turns.begin_round()
    turns.note(report(1, 2), TRAINED)
    assert turns.size() == 1, "nothing was predicted"
    turns.begin_round()
    forecasts = tuple(
        LayoutForecast(tensor_parallel_size=size, seconds=seconds) for size, seconds in ((1, 9.0), (2, 8.0))
    )
    turns.note(report(2, 1, layout_forecasts=forecasts), TRAINED)
    assert turns.size() == 2
    assert [one.size for one in turns.played] == [2, 1]
    assert turns.played[0].held > 0


def test_the_target_has_the_size_of_the_next_turn() -> None:
    async def sizes() -> list[int]:
        found, size = [], [1]
        control = SizedTarget(job_of(QUICK, QUICK.settings[0], "package://rljob/toy", 1, 0), lambda: size[0])
        for size[0] in (2, 1):
            target = (await control.observe()).job.status.target
            assert target is not None
            found += [target.tensor_parallel.short, target.tensor_parallel.long]
        control.note(report(1, 1), TRAINED)
        async with asyncio.timeout(30.0):
            await control.wait_changed(600.0)
        return found

    assert asyncio.run(sizes()) == [2, 2, 1, 1]


def test_all_jobs_use_the_same_engines() -> None:
    jobs = [job_of(Plan(), setting, "/model", 3, 0) for setting in Plan().settings]
    assert {job.spec.rollout.engine_options.max_concurrent_requests for job in jobs} == {256}
    assert jobs[0].spec.rollout == jobs[1].spec.rollout
    assert jobs[0].spec.switch_sizes == SIZES


ENGINE = SizedEngine(LatencyModel(((1, 0.1), (2, 0.2)), 0.0, 0.0, 0.0, 0.0), 1 << 20)


def glance(at: float, size: int = 1, waiting: int = 0, **tokens: dict[int, int]) -> Glance:
    its = {name: {key(index): count for index, count in held.items()} for name, held in tokens.items()}
    running = {name: (len(held), sum(held.values())) for name, held in its.items() if held}
    return Glance(at, size, its, running, waiting)


def test_steps_are_predicted_for_each_replica_between_two_looks() -> None:
    played = Played(Turn(1, Way.STATIC, 1), 1, engines={1: ENGINE})
    played.glances = [
        glance(1.0, a={0: 10, 1: 10}, b={2: 10}),
        glance(3.0, a={0: 20}, b={2: 30}),
        glance(4.0, a={0: 20}, b={2: 40}, waiting=1),
        glance(5.0, size=2, a={0: 30}),
    ]
    found = {one.responses: one for one in stretches_of(played)}
    assert len(stretches_of(played)) == 2, "none while something waits, or over a switch"
    assert (found[2].steps, found[2].seconds) == (10, 2.0)
    assert found[2].predicted == pytest.approx(10 * 0.15), "two responses at first, one at last"
    assert (found[1].steps, found[1].predicted) == (20, pytest.approx(2.0))
    assert stretches_of(replace(played, engines={})) == []


def switched(state: State, seconds: float, tokens: float, cheaper: State | None) -> tuple[Ordered, LayoutSwitch]:
    decision = SwitchDecision(SwitchOutcome.SWITCHED, 2, state)
    made = LayoutSwitch("rollout-0", 1, 2, decision, responses=(key(0),), reached=2)
    if state is State.MIGRATE:
        made.seconds, made.imported_tokens = {"export": seconds / 2, "import": seconds / 2}, 1
    else:
        made.seconds = {"prefill": seconds}
    return Ordered(decision, tokens, cheaper), made


def test_neighbouring_switches_show_which_state_was_cheaper() -> None:
    made = [
        switched(State.MIGRATE, 1.0, 100, State.MIGRATE),
        switched(State.RECOMPUTE, 4.0, 200, State.MIGRATE),
        switched(State.MIGRATE, 3.0, 100, State.MIGRATE),
        switched(State.RECOMPUTE, 1.0, 100, State.MIGRATE),
        switched(State.MIGRATE, 1.0, 100, State.MIGRATE),
    ]
    played = Played(Turn(1, Way.ORDERED, 1), 1, ordered=[one for one, _ in made], switches=[one for _, one in made])
    right, wrong = state_pairs(played)
    assert (right.move, right.recompute, right.is_right) == (1.0, 2.0, True)
    assert (wrong.move, wrong.recompute, wrong.is_right) == (3.0, 1.0, False)
    made[1][1].reached = 1
    assert len(state_pairs(played)) == 1, "a switch that did not reach its size shows nothing"


def test_blocks_that_count_have_a_round_of_the_policy() -> None:
    played = [Played(turn, turn.size or 2) for turn in Setting(4, 4, 3, planned=2, ordered=1).turns()]
    blocks = blocks_of(played)
    assert len(blocks) == 3
    assert all(block.adaptive.turn.way is Way.ADAPTIVE for block in blocks)
    assert all(set(block.static) == set(SIZES) for block in blocks)


def measured(turn: Turn, seconds: float, gain: float | None = None, size: int = 1) -> Played:
    """A round of so many seconds, in which a switch with this predicted gain was made."""
    decision = SwitchDecision(SwitchOutcome.SWITCHED, 2, gain=gain)
    made = [] if gain is None else [LayoutSwitch("rollout-0", size, 2, decision, reached=2)]
    return Played(turn, size, switches=made, report=report(1, size, seconds))


def test_a_gain_is_measured_against_the_same_start_and_lengths() -> None:
    played = [
        measured(Turn(1, Way.ADAPTIVE), 8.0, 1.5),
        measured(Turn(1, Way.STATIC, 1), 10.0),
        measured(Turn(1, Way.STATIC, 2), 11.0, size=2),
        measured(Turn(2, Way.PLANNED, 1), 12.0, -1.0),
        measured(Turn(2, Way.STATIC, 1), 11.5),
        measured(Turn(3, Way.ADAPTIVE), 9.0),
        measured(Turn(3, Way.STATIC, 1), 9.5),
        measured(Turn(4, Way.ORDERED, 1), 9.0, 3.0),
    ]
    assert gains_of(played) == [Gain(Way.ADAPTIVE, 1.5, 2.0), Gain(Way.PLANNED, -1.0, -0.5)]
    played[0].switches[0].reached = 1
    assert [one.way for one in gains_of(played)] == [Way.PLANNED], "a switch that did not reach its size"


def test_gains_that_cancel_out_do_not_hide_their_errors() -> None:
    played = [
        measured(Turn(1, Way.PLANNED, 1), 8.0, 3.0),
        measured(Turn(1, Way.STATIC, 1), 10.0),
        measured(Turn(2, Way.PLANNED, 1), 12.0, -2.0),
        measured(Turn(2, Way.STATIC, 1), 10.0),
    ]
    found = {one["name"]: one["value"] for one in prediction_figures({8: played})}
    assert found["gain: planned rounds that switched"] == 2
    assert found["gain: adaptive rounds that switched"] == 0
    assert (found["gain: planned rounds, predicted"], found["gain: planned rounds, measured"]) == (0.5, 0.0)
    assert found["gain: bias"] == pytest.approx(1.0 / 4.0)
    assert "gain: predicted over measured" not in found, "nothing was gained on the whole"


def test_seconds_beyond_generation_end_with_the_round() -> None:
    before, one = measured(Turn(0, Way.STATIC, 1), 9.0), measured(Turn(1, Way.ADAPTIVE), 10.0)
    more = {"seconds": 11.5, "training_seconds": 1.0, "broadcast_seconds": 0.5, "layout_seconds": 2.0}
    assert one.report is not None
    one.report = one.report.model_copy(update=more)
    before.ended, one.ended = 100.0, 114.0
    assert other_seconds(before, one) == {"training": 1.0, "broadcast": 0.5, "between rounds": 0.5}


def latency(one: float, each: float) -> SizedEngine:
    """An engine whose step takes so long with one response, and so much more with each further one."""
    return SizedEngine(LatencyModel(((1, one), (257, one + 256 * each)), 0.0, 0.0, 0.0, 0.0), 1 << 20)


@pytest.mark.parametrize(
    ("wide", "verdict"),
    [(latency(0.04, 0.006), "can pay"), (latency(0.079, 0.006), "cannot pay"), (None, "not known")],
)
def test_the_result_tells_whether_a_switch_can_pay(wide: SizedEngine | None, verdict: str) -> None:
    engines = {1: latency(0.08, 0.0015)} | ({2: wide} if wide is not None else {})
    played = [
        measured(Turn(1, Way.ADAPTIVE), 8.0),
        *(measured(Turn(1, Way.STATIC, size), 9.0, size=size) for size in SIZES),
    ]
    played[0].engines = engines
    unused: Any = None
    lengths = generated_lengths(0, 400)
    experiment = SwitchExperiment({64: played}, played[1], unused, unused, {64: lengths}, {64: (8, 8)}, 400, 0.0)
    row = rows(experiment)[0]
    assert (row["responses"], row["switches"], row["least_gain"]) == (64, verdict, 1.03)
    assert (row["limit"] is None) == (wide is None)


def test_figures_compare_what_is_not_generation() -> None:
    turns = Setting(8, 8, 3, planned=1).turns()
    played = [measured(turn, 8.0 + number, size=turn.size or 1) for number, turn in enumerate(turns)]
    end = 0.0
    for one in played:
        assert one.report is not None
        others = 1.5 if one.turn.way is Way.ADAPTIVE else 1.0
        more = {"seconds": one.seconds + others, "training_seconds": others - 0.5, "broadcast_seconds": 0.5}
        one.report, one.ended = one.report.model_copy(update=more), end + one.seconds + others + 0.25
        one.engines = {1: latency(0.08, 0.0015), 2: latency(0.04, 0.006)}
        end = one.ended
    memory: Any = SimpleNamespace(between=lambda began, ended: [])
    lengths, shapes = {64: generated_lengths(0, 400)}, {64: (8, 8)}
    experiment = SwitchExperiment({64: played}, played[0], Restart(10.0, 5.0), memory, lengths, shapes, 400, 0.0)
    found = {one["name"]: one for one in figures(experiment)}
    told = found["64 responses: beyond generation: over static sizes"]
    assert (told["value"], told["goal"]) == (pytest.approx(1.75 / 1.25), 1.015)
    training = found["64 responses: beyond generation: training"]
    assert (training["value"], training["limit"]) == (pytest.approx(1.0), pytest.approx(0.5))
    assert found["64 responses: beyond generation: between rounds"]["value"] == pytest.approx(0.25)
    ours = sum(one.seconds for one in played if one.turn.way is Way.ADAPTIVE)
    static = [one for one in played if 0 < one.turn.block < 4 and one.turn.way is Way.STATIC]
    best = min(sum(one.seconds for one in static if one.size == size) for size in SIZES)
    speed = found["64 responses: over the best static size"]
    assert speed["value"] == pytest.approx(best / ours)
    assert speed["limit"] > 1


def test_ordered_switches_carry_responses_in_both_ways(tmp_path: Path) -> None:
    run = Run(tmp_path)
    turns = run.stage.switch_policy = Turns([Turn(0, Way.ORDERED, 1)], RULES, apart=0.1)
    run.stage.watchers.append(lambda event: setattr(turns, "coordinator", run.stage.coordinator))
    run.play()
    (played,) = turns.played
    ordered = [one.decision.state for one in played.ordered]
    assert ordered[:4] == [State.MIGRATE, State.MIGRATE, State.RECOMPUTE, State.RECOMPUTE]
    assert {one.decision.state for one in played.switches if one.decision is not None} >= set(ordered[:2])
    assert all(("export" in one.seconds) <= one.moves_kv for one in played.switches)
    assert {name for glance in played.glances for name in glance.running} >= {"rollout-0/replica-0"}


def look_at(switches: int) -> SwitchLook:
    """A look at a machine of four engines of one accelerator, each with one response of a long tail."""
    engines = {f"rollout-0/replica-{number}": {key(number): 900} for number in range(4)}
    found = SwitchableMachine("rollout-0", 1, (2, 4), engines, switches=switches)
    running = {name: (Unfinished(100, 900),) for name in engines}
    lengths = ExpectedLengths(Survival(LENGTHS, [900] * 4), LIMIT)
    round_ = RoundSnapshot((), (), lengths, [OpenGroup(4)], 1, 0, None, running)
    return SwitchLook([found], round_, dict.fromkeys(engines, 1), ENGINES, costs())


def test_a_round_of_a_planned_switch_makes_one() -> None:
    turns = Turns([Turn(1, Way.PLANNED, 1)], SwitchRules(frozenset(ENGINES), min_gain=0.9))
    turns.begin_round()
    assert turns.is_due(60, 64, 0.0)
    assert not turns.is_due(60, 64, 9.0), "it looks when the policy does"
    decision = turns.decide(look_at(0))["rollout-0"]
    assert (decision.outcome, decision.target) == (SwitchOutcome.SWITCHED, 4)
    assert decision.gain is not None
    assert turns.decide(look_at(1)) == {}


def test_a_job_makes_a_planned_switch_and_predicts_its_gain(tmp_path: Path) -> None:
    run = Run(tmp_path, rounds=2)
    careful = SwitchRules(frozenset(SIZES), min_gain=0.9)
    turns = run.stage.switch_policy = Turns([Turn(0, Way.ORDERED, 1), Turn(1, Way.PLANNED, 1)], careful, apart=0.1)
    run.stage.watchers.append(lambda event: setattr(turns, "coordinator", run.stage.coordinator))
    run.play()
    planned = turns.played[1].switches
    assert planned
    machines = Counter(one.machine for one in planned)
    assert set(machines.values()) == {1}
    assert all(one.decision is not None and one.decision.gain is not None for one in planned)
    assert turns.played[1].ordered == [], "its states are those that are cheaper"


def sampled(memory: MemoryWatch, since: float) -> float:
    """Return when there is a sample that began after `since`: the second one that ends after it."""
    until = since + 30.0
    while len(memory.between(since, time.monotonic())) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    return time.monotonic()


def test_memory_is_that_of_all_processes_and_files(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests have left
    before = memory_watch.held()
    with MemoryWatch(tmp_path, every=0.01) as memory, (tmp_path / "file").open("wb") as file:
        since = time.monotonic()
        first = sampled(memory, since)
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        # Pages of its own: an allocator may serve a large array from freed memory that the process still holds.
        kept = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        second = sampled(memory, time.monotonic())
        grown = max(memory.between(first, second)) - max(memory.between(since, first))
        assert grown == pytest.approx(128 << 20, rel=0.2)
        assert memory_watch.held() - before == pytest.approx(64 << 20, rel=0.3)
        kept.close()


@pytest.mark.slow  # minutes; layouts of a real engine are in tests/unit/rollout/engines/test_kv_transfer.py
@pytest.mark.engine
def test_the_benchmark_runs_on_real_engines() -> None:
    result = pat_real(quick=True, seed=0)
    found = {one["name"]: one["value"] for one in result["figures"]}
    assert result["settings"]["engine"] == "Reference"
    rounds = [row for row in result["rows"] if "way" in row]
    assert [row["start"] for row in rounds if row["way"] == "static"] == [2, 1, 1, 2, 1]
    block = [row for row in rounds if row["block"] == 1]
    assert len({row["tokens"] for row in block}) == 1, "the rounds of a block have the same lengths"
    ordered = [one for row in rounds if row["way"] == "ordered" for one in row["switches"]]
    assert {tuple(one["sizes"]) for one in ordered} == {(1, 2, 2), (2, 1, 1)}
    assert {"export" in one["seconds"] for one in ordered} == {True, False}, "both states were ordered"
    for name in ("switch: stop", "switch: start", "switch: load", "switch: over a restart", "restart: new processes"):
        assert found[name] > 0
    assert found["32 responses: over the best static size"] > 0
    assert found["32 responses: beyond generation: over static sizes"] > 0
    assert next(row["switches"] for row in result["rows"] if "least_gain" in row).endswith("pay")
    (planned,) = (row for row in rounds if row["way"] == "planned")
    # The toy's tail lasts a fraction of a second, so that a plan may come too late for it.
    made = [one["sizes"] for one in planned["switches"]]
    assert made in ([], [[1, 2, 2]])
    assert found["gain: planned rounds that switched"] == len(made)
