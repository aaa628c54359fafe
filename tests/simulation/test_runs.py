"""Whole runs: seeds with faults hold every invariant, a seed is a run to the byte, a cluster's round is cheap."""

import asyncio
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from rljob_api.spec.training import Mode
from rljob_bench.lib.cluster import BenchmarkCluster
from rljob_runtime.coordinator.evaluation.stage import JOB_INTERRUPTED
from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B, QWEN2_5_32B
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import (
    Asked,
    CoordinatorEnded,
    CoordinatorStarted,
    FaultBegan,
    FaultEnded,
    Generated,
    LaidOut,
    Learned,
    ProcessEnded,
    ProcessStarted,
    Reported,
    Restored,
    Trained,
)
from rljob_runtime.simulator.core.network import CoordinatorIncarnation, Process, SimulatedWire
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.drawn_scenario import MOST_MACHINES, MOST_TRAJECTORIES, draw_scenario, plan_of
from rljob_runtime.simulator.episode_side import Environment, EpisodeScenario
from rljob_runtime.simulator.faults.plan import (
    APPLICABLE,
    Fault,
    FaultPlan,
    FaultType,
    Role,
    draw_leaves,
    possible_targets,
)
from rljob_runtime.simulator.faults.spec_edits import Edit
from rljob_runtime.simulator.peers.assumptions import STANDARD
from rljob_runtime.simulator.peers.code_rewards import Programs
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.trainer import TRAINER
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Evaluated
from rljob_runtime.simulator.trace import Timeline
from tests.support.rows import slow

SEEDS = 200
PORTIONS = 40
# Two machines with two replicas each: every target that a fault can name is there.
SCENARIO = next(
    scenario
    for scenario in map(draw_scenario, range(1000))
    if scenario.machines == 2 and scenario.site.replicas == 2 and scenario.episodes is None
)
LONG = replace(SCENARIO, rounds=8, edit=None)
EPISODES = EpisodeScenario((Environment(HarnessScript()),))


@pytest.mark.parametrize("mode", [*slow(Mode.ON_POLICY), Mode.ASYNCHRONOUS])
@pytest.mark.parametrize("portion", [0, *slow(*range(1, PORTIONS))])
def test_seeds_hold_every_invariant(portion, mode):
    for seed in range(portion, SEEDS, PORTIONS):
        scenario = draw_scenario(seed, mode)
        outcome = simulate(scenario, plan_of(scenario))
        command = f"rljob simulate --mode {mode.value} --seeds 1 --seed {seed}"
        assert outcome.passed, f"seed {seed}: {outcome.violation}; {command} tells more"


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, *slow(Mode.ASYNCHRONOUS)])
@pytest.mark.parametrize("portion", [0, *slow(*range(1, PORTIONS))])
def test_planned_leaves_cost_no_finished_update(portion, mode):
    """Of trainer and coordinator, alone and together, at any moment: the invariant `no update lost`."""
    for seed in range(portion, SEEDS, PORTIONS):
        scenario = draw_scenario(seed, mode)
        leaves = draw_leaves(seed, scenario.horizon)
        outcome = simulate(scenario, leaves)
        command = f'rljob simulate --mode {mode.value} --seeds 1 --seed {seed} --plan "{leaves}"'
        assert outcome.passed, f"seed {seed}: {outcome.violation}; {command} tells more"


@pytest.mark.parametrize("mode", [*slow(Mode.ON_POLICY), Mode.ASYNCHRONOUS])
@pytest.mark.parametrize("portion", [0, *slow(*range(1, PORTIONS))])
def test_a_suspension_after_a_killed_coordinator_keeps_finished_updates(portion, mode):
    """At any moment around its death and its successor's start: the invariant `no update lost`."""
    for seed in range(portion, SEEDS, PORTIONS):
        drawn = random.Random(f"{seed}/restart")
        scenario = replace(draw_scenario(seed, mode), checkpoint_every=100)
        crash = Fault(
            round(drawn.uniform(0, scenario.horizon), 3), FaultType.CRASH, "coordinator", drawn.choice([0.1, 10])
        )
        moment = max(0.0, crash.time + drawn.uniform(-1, crash.duration + 4))
        scenario = replace(scenario, edit=Edit(round(moment, 3), suspended=30.0))
        plan = FaultPlan((crash,))
        assert plan.planned
        outcome = simulate(scenario, plan)
        assert outcome.passed, f"seed {seed}, {crash}, {scenario.edit}: {outcome.violation}"


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, *slow(Mode.ASYNCHRONOUS)])
def test_an_update_awaiting_evaluations_closes_before_the_pods_leave(mode, caplog):
    scenario = replace(
        draw_scenario(113, mode), edit=None, episodes=None, evaluations=(Evaluated(6, 3, 1),), checkpoint_every=100
    )
    trained = []

    def see(event):
        if isinstance(event, Trained):
            trained.append(loop_time())

    assert simulate(scenario, FaultPlan(), [see]).passed
    for moment in trained[:-1]:
        leaves = "; ".join(f"{moment + 0.1:.3f} leave {pod} 75" for pod in ("coordinator", "trainer"))
        outcome = simulate(scenario, FaultPlan.parse(leaves))
        assert outcome.passed, outcome.violation
    assert JOB_INTERRUPTED in caplog.text, "no evaluation was waited for"


@pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, *slow(Mode.ON_POLICY)])
def test_an_unreported_update_is_kept(mode):
    """The coordinator dies while the trainer computes, and its successor finds the trainer an update ahead."""
    scenario = replace(draw_scenario(3, mode), episodes=None, rounds=4, edit=None, checkpoint_every=100)
    trained, began = [], []

    def see(event):
        if isinstance(event, Trained):
            trained.append(loop_time())
        elif isinstance(event, Restored):
            began.append(event.step)

    assert simulate(scenario, FaultPlan(), [see]).passed
    for moment in trained[1:3]:
        began.clear()
        outcome = simulate(scenario, FaultPlan.parse(f"{moment - 0.5:.3f} crash coordinator 1"), [see])
        assert outcome.passed, outcome.violation
        assert began == [0], "the trainer is never restarted"


def test_a_coordinator_that_leaves_with_its_store_costs_no_update():
    """The trainer, and what it saved, are still there."""
    scenario, leave = replace(LONG, checkpoint_every=100), "20 leave coordinator 75"
    left, trained, restored = [], [], []

    def see(event):
        if isinstance(event, CoordinatorEnded):
            left.append(loop_time())
            trained.append(restored.pop())
        elif isinstance(event, Restored | Trained):
            restored.append(event.step)

    assert simulate(scenario, FaultPlan.parse(leave), [see]).passed
    gone, saved = left[0], trained[0]
    assert saved > 0
    restored.clear()
    # Its disk goes with it, and the trainer's process as the next one comes.
    plan = FaultPlan.parse(f"{leave}; {gone + 1:.3f} disk-lost coordinator 1; {gone + 5:.3f} crash trainer 1")
    assert simulate(scenario, plan, [see]).passed
    assert saved in restored, "the checkpoint that was written as the coordinator left"
    assert restored.count(1) == 1, "no update was made twice"


FAULTS = [(role, kind) for role, kinds in APPLICABLE.items() for kind in kinds]
# One role stands for each kind of fault.
FIRST = {kind: role for role, kind in reversed(FAULTS)}


@pytest.mark.parametrize(
    ("role", "kind"),
    [pytest.param(role, kind, marks=() if FIRST[kind] is role else pytest.mark.slow) for role, kind in FAULTS],
    ids=str,
)
def test_each_fault_begins_and_ends_and_the_job_goes_on(role, kind):
    of_episodes = role in (Role.GATEWAY, Role.RUNNER)
    scenario = replace(LONG, stream_training=False, episodes=EPISODES) if of_episodes else LONG
    target = possible_targets(LONG.machines, LONG.site.replicas, runners=EPISODES.runners)[role][0]
    seen = []
    plan = FaultPlan((Fault(4.0, kind, target, 6.0),))
    outcome = simulate(scenario, plan, [lambda event: seen.append(event)])
    assert outcome.violation is None
    # The job is longer than any fault: none outlives it.
    assert [(type(event), event.fault) for event in seen if isinstance(event, FaultBegan | FaultEnded)] == [
        (FaultBegan, str(plan)),
        (FaultEnded, str(plan)),
    ]
    terms = [event.term for event in seen if isinstance(event, CoordinatorStarted)]
    assert terms == sorted(set(terms))
    assert outcome.coordinators == len(terms)


def test_a_crash_of_the_coordinator_takes_another_one():
    assert simulate(SCENARIO, FaultPlan.parse("4 crash coordinator 1")).coordinators == 2


def test_a_job_that_told_its_end_is_over_though_it_was_to_be_suspended():
    """The suspension reached it too late, told that it is complete, and was killed right then: no other coordinator
    comes, that would wait for a resumption."""
    scenario = replace(draw_scenario(1983, Mode.ASYNCHRONOUS), episodes=None, prompts_seconds=0.0, evaluations=())
    faults, moments = "0.544 loss api 8.9; 9.492 partition api 3.217", []

    def see(event):
        if isinstance(event, Reported | CoordinatorEnded):
            moments.append(loop_time())

    assert simulate(scenario, FaultPlan.parse(faults), [see]).coordinators == 1
    told, left = moments[-2:]
    assert told < left
    outcome = simulate(scenario, FaultPlan.parse(f"{faults}; {(told + left) / 2:.5f} crash coordinator 38.538"))
    assert outcome.passed
    assert outcome.coordinators == 1


@pytest.mark.parametrize("kind", ["hang", "slow", "partition", "loss", "duplication", "reordering", "disk-full"])
def test_a_fault_of_the_coordinators_place_outlives_the_coordinator(kind):
    """It crashes inside the fault; its successor feels the rest of it, and the end."""
    ended = []
    plan = FaultPlan.parse(f"3 {kind} coordinator 6; 5 crash coordinator 1")
    assert simulate(
        SCENARIO, plan, [lambda event: ended.append(event) if isinstance(event, FaultEnded) else None]
    ).passed
    assert len(ended) == 2


def test_faults_matter():
    calm = simulate(SCENARIO, FaultPlan())
    for fault in ("4 hang trainer 30", "2 partition rollout-0 30", "4 crash coordinator 9"):
        assert simulate(SCENARIO, FaultPlan.parse(fault)).digest != calm.digest


@pytest.mark.parametrize("seeds", [(300, 303, 304, 309), *slow((3, 301, 302, 308, 311))])
def test_the_same_seed_is_the_same_run_to_the_byte_in_any_process(seeds: tuple[int, ...]) -> None:
    """Strings hash otherwise in each process: an order that comes from a set would show."""
    assert any(draw_scenario(seed).episodes is not None for seed in seeds)
    program = (
        "import logging; logging.disable(50)\n"
        "from rljob_runtime.simulator.run import simulate\n"
        "from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of\n"
        f"for seed in {seeds!r}:\n"
        "    scenario = draw_scenario(seed)\n"
        "    print(simulate(scenario, plan_of(scenario)))\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [str(simulate(scenario, plan_of(scenario))) for scenario in map(draw_scenario, seeds)]
    assert here == other.stdout.splitlines()
    assert all(one.startswith("SimulationResult(violation=None") for one in here)


def test_seeds_are_small_and_differ():
    scenarios = [draw_scenario(seed) for seed in range(500)]
    assert max(scenario.machines for scenario in scenarios) == MOST_MACHINES
    assert all(one.rounds * one.prompts * one.responses <= MOST_TRAJECTORIES for one in scenarios)
    assert len({plan_of(scenario) for scenario in scenarios}) == 500
    assert {one.tail_factor for one in scenarios} == {None, 1.0, 1.25, 1.5}
    assert any(one.response_factor == 1 and (one.tail_factor or 1) > 1 for one in scenarios)
    assert all(one.tail_factor for one in scenarios if one.response_factor)
    assert {bool(one.programs) for one in scenarios} == {False, True}
    assert {(one.dynamic_sampling, one.stream_training) for one in scenarios} == {
        (dynamic, stream) for dynamic in (False, True) for stream in (False, True)
    }
    assert {(bool(one.site.wider), one.site.lendable) for one in scenarios} == {
        (layouts, loans) for layouts in (False, True) for loans in (False, True)
    }


@pytest.mark.slow
def test_seeds_change_layouts_and_loan_machines_under_their_faults():
    scenarios = [
        scenario
        for scenario in map(draw_scenario, range(200))
        if scenario.random_layout_changes or scenario.site.lendable
    ]
    counts = Counter()

    def watch(event):
        match event:
            case LaidOut(_, size, since):
                counts["changed"] += since > 0 and size > 1
            case Trained(parts=parts):
                counts["loaned"] += any(part.worker != TRAINER for part in parts)

    for scenario in scenarios:
        outcome = simulate(scenario, plan_of(scenario), [watch])
        assert outcome.passed, f"seed {scenario.seed}: {outcome.violation}"
    assert counts["changed"] > 10
    assert counts["loaned"] > 5


def test_a_seed_stays_small_whatever_its_user_edits():
    drawn = Counter()
    for scenario in map(draw_scenario, range(1000)):
        edit = scenario.edit
        if edit is None:
            continue
        drawn["rounds", (edit.rounds or 0) > scenario.rounds] += edit.rounds is not None
        drawn["machines", (edit.machines or 0) > scenario.machines] += edit.machines is not None
        drawn["suspended", False] += edit.suspended is not None
        assert [edit.rounds, edit.machines, edit.suspended].count(None) == 2
        assert (edit.rounds or 1) * scenario.prompts * scenario.responses <= MOST_TRAJECTORIES
        assert 1 <= (edit.machines or 1) <= MOST_MACHINES
        assert edit.rounds != scenario.rounds
        assert abs((edit.machines or scenario.machines) - scenario.machines) <= 1
    assert len(drawn) == 5
    assert min(drawn.values()) > 10


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_an_edit_of_the_rounds_is_told_and_kept_under_faults(rounds):
    """Fewer than are done or under way: the job ends where it is."""
    trained, asked = [], []
    scenario = replace(SCENARIO, rounds=3, edit=Edit(8.0, rounds=rounds))

    def watch(event):
        match event:
            case Trained(step=step):
                trained.append(step)
            case Asked(number):
                asked.append((number, len(trained)))

    outcome = simulate(scenario, FaultPlan.parse("7 crash coordinator 3; 12 crash trainer 2"), [watch])
    assert outcome.passed, outcome.violation
    ((number, done),) = asked
    assert number == rounds
    assert max(rounds, done) <= max(trained) <= max(rounds, done + 1)


@pytest.mark.parametrize("faults", ["", "5 hang coordinator 100", "5 crash coordinator 10", "5 crash rollout-0 20"])
def test_a_suspended_job_loses_all_of_its_pods_and_goes_on_with_new_ones(faults):
    """However long the coordinator says nothing: the operator waits for the drain's bound."""
    seen = []
    scenario = replace(LONG, edit=Edit(6.0, suspended=40.0))
    outcome = simulate(scenario, FaultPlan.parse(faults), [lambda event: seen.append((loop_time(), event))])
    assert outcome.passed, outcome.violation
    ended = [at for at, event in seen if isinstance(event, ProcessEnded) and event.process == "trainer"]
    started = [at for at, event in seen if isinstance(event, ProcessStarted)]
    (gone,) = ended
    assert gone >= 6.0
    assert not [at for at in started if gone < at < 46.0]
    assert {event.process for at, event in seen if isinstance(event, ProcessStarted) and at >= 46.0} >= {
        "trainer",
        "rollout-0/relay",
        "rollout-1/relay",
    }
    # A coordinator that crashes or hangs has a successor, which is waited for while the trainer holds updates.
    assert outcome.coordinators == (3 if "coordinator" in faults else 2)
    if not faults:
        assert "Suspended" in [event.status.stage for at, event in seen if isinstance(event, Reported) and at <= gone]


@pytest.mark.parametrize(
    ("machines", "faults"), [(1, ""), (3, ""), (1, "5 crash rollout-1 20"), (1, "5 partition api 20")]
)
def test_machines_come_and_go_while_the_job_runs(machines, faults):
    seen = []
    scenario = replace(LONG, edit=Edit(6.0, machines=machines))
    assert simulate(scenario, FaultPlan.parse(faults), [lambda event: seen.append((loop_time(), event))]).passed
    relays = {f"rollout-{index}/relay" for index in range(3)}
    running = {event.process for _, event in seen if isinstance(event, ProcessStarted)} & relays
    last = {event.process: type(event) for _, event in seen if isinstance(event, ProcessStarted | ProcessEnded)}
    left = {relay for relay in running if last[relay] is ProcessStarted}
    assert left == {f"rollout-{index}/relay" for index in range(machines)}


def test_anchors_outlive_the_coordinator_and_a_rewind():
    """What rewards learned is in the store by the round, or it is learned again."""
    programs = Programs(0.5, 0.55, 0.0, TimeoutRule(minimum=0.1, maximum=4.0))
    scenario = replace(LONG, programs=programs, dynamic_sampling=False, checkpoint_every=2)
    learned, restored = [], []

    def watch(event):
        match event:
            case Learned(anchors):
                learned.append(dict(anchors))
            case Restored(step=step):
                restored.append(step)

    outcome = simulate(scenario, FaultPlan.parse("70 crash coordinator 2; 90 crash trainer 2"), [watch])
    assert outcome.passed, outcome.violation
    assert outcome.coordinators == 2
    assert restored[0] == 0
    assert restored[-1] > 0
    kept = learned[restored[-1] - 1]  # of the last round that the rewind left
    assert kept
    assert set(kept) < set(learned[-1])


def test_a_killed_coordinator_runs_no_exit_code():
    """A killed process runs no code at its exit."""
    asked = []

    async def last_words():
        wire = SimulatedWire(
            Process("rollout-0/worker", Listener(asked)), random.Random(0), 0.001, CoordinatorIncarnation()
        )
        assert await wire.call(5.0, "echo", "alive") == "received"
        wire = SimulatedWire(Process("rollout-0/worker", Listener(asked)), random.Random(0), 0.001, dead())
        with pytest.raises(asyncio.CancelledError):
            await wire.call(5.0, "echo", "dead")

    virtual_time.run(last_words())
    assert asked == ["alive"]


class Listener:
    """A peer that notes what it is told."""

    def __init__(self, asked):
        self._asked = asked

    async def echo(self, word):
        self._asked.append(word)
        return "received"


def dead():
    life = CoordinatorIncarnation()
    life.alive = False
    return life


def test_a_timeline_is_a_trace_that_names_everybody(tmp_path):
    plan = FaultPlan.parse("3 crash rollout-1/replica-0 2; 5 crash coordinator 1")
    found = None

    def timeline(event):
        nonlocal found
        found = found or Timeline(loop_time)
        found(event)

    simulate(SCENARIO, plan, [timeline])
    found.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"rollout-0", "rollout-1", "trainer", "coordinator", "faults", "replica-0", "relay"} <= names
    assert all(event.get("dur", 0) >= 0 and event.get("ts", 0) >= 0 for event in events)
    begun = [(event["cat"], event["id"]) for event in events if event["ph"] == "b"]
    assert sorted(begun) == sorted((event["cat"], event["id"]) for event in events if event["ph"] == "e")
    held = [event["args"]["held"] for event in events if event["ph"] == "C"]
    assert min(held) == 0
    assert max(held) > 0


# --- a cluster ---


@pytest.mark.parametrize("machines", [16, *slow(128)])
def test_a_round_of_a_cluster_takes_few_events(machines):
    """Eight accelerators a machine and eight responses an accelerator: a handful of events each, whatever their
    lengths. (128 machines take about 12 s of one core, nearly all of it the coordinator and its store.)"""
    responses = 64 * machines
    cluster = BenchmarkCluster(QWEN2_5_7B, H800, machines=machines, trainer_accelerators=8 * machines)
    reports, tokens, trained = [], [], []

    def watch(event):
        if isinstance(event, Reported):
            reports.append(event.status)
        elif isinstance(event, Generated):
            tokens.append(event.tokens)
        elif isinstance(event, Trained):
            trained.append(event)

    outcome = simulate(cluster.scenario("rollpacker-7b-8k", 1, 8 * machines, 8, 8000), FaultPlan(), [watch])
    assert outcome.violation is None
    assert outcome.events < 6 * responses
    assert len(tokens) == responses
    assert len(trained) == 1
    last = reports[-1].last_round
    assert (last.responses, last.tokens, last.max_response_tokens) == (responses, sum(tokens), max(tokens))


def test_what_a_cluster_costs_follows_from_shapes_and_assumptions():
    small = BenchmarkCluster(QWEN2_5_7B, H800, machines=2, trainer_accelerators=16)
    large = BenchmarkCluster(QWEN2_5_32B, H800, machines=2, trainer_accelerators=32, tensor_parallel=4)
    assert (small.site().replicas, large.site().replicas) == (8, 2)
    ratio = large.weight_bytes / small.weight_bytes
    assert large.costs().publish / small.costs().publish == pytest.approx(ratio)
    assert large.costs().token / small.costs().token == pytest.approx(ratio / 2)
    assert large.engine().load_seconds / small.engine().load_seconds == pytest.approx(ratio / 4)
    # Laminar prints a stall of 0.64 s for 32B.
    assert large.costs().publish == pytest.approx(0.64, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel": 3}, "do not split into engine slots of 3"),
        ({"machines": 0}, "0 machines"),
        ({"trainer_accelerators": 0}, "0 trainer accelerators"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchmarkCluster(
            **{"model": QWEN2_5_7B, "accelerator": H800, "machines": 2, "trainer_accelerators": 16} | changes
        )


def test_every_assumption_has_a_unit_and_a_source():
    for name, assumption in STANDARD.table():
        assert assumption.value > 0, name
        assert math.isfinite(assumption.value), name
        assert assumption.unit, name
        assert len(assumption.source) > 10, name
