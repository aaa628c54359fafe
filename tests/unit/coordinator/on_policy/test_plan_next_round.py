"""Auto in the coordinator: decided at the draw, stored with the round, reported with its outcome."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from rljob_api.status import FinishedOutcome, RoundKind, RoundReport
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.on_policy.plan_next_round import choose_plan
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.policy_failures import PolicyFailures
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.observed_speed import Speed, fit_latency
from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.protocols import EngineStats, ReplicaReport, TrainReport
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.round_planner.planner import PlanningHorizon
from rljob_runtime.scheduling.round_planner.plans import Plan, SelectedPlan
from rljob_runtime.scheduling.tail_batching import Factors
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Submitted
from rljob_runtime.simulator.drawn_scenario import draw_scenario
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.cluster import ClusterSpec, SimulatedCluster
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind
from rljob_runtime.simulator.peers.observed_store import InlineStore, ObservedStore
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.simulator.run import simulate
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

AUTO = {"enabled": "Auto", "promptFactor": "Auto", "responseFactor": "Auto"}
LATENCY = LatencyModel(((1, 0.02), (64, 0.04)), 1e-6, 0.01, 1e-5, 0.0)
ONE_PASS = replace(LATENCY, prefill_seconds=LATENCY.base(1))
"""A pass over prompts reads the weights as a decode step does."""


async def planned(store: Store, settings: Settings, run: Stage, step: int, rounds_left: int) -> SelectedPlan:
    """Choose the plan of a round as a coordinator with this store does."""
    horizon = PlanningHorizon(settings.prompts_per_round, settings.responses_per_prompt, rounds_left)
    failures = PolicyFailures(lambda reason, warning: pytest.fail(str(warning)))
    return await choose_plan(InlineStore(store), settings, run.source, failures, step, horizon)


def tailed(key: TrajectoryKey, version: int) -> int:
    """One of 24 responses runs on to the limit, whatever its prompt."""
    return 40 if Random(f"{key}/{version}").random() < 1 / 24 else 4 + (key.prompt.index + key.sample) % 3


def even(key: TrajectoryKey, version: int) -> int:
    return 36 + (key.prompt.index + key.sample) % 5


def stage(path, lengths=tailed, rounds=12, tail=None, stream=False, costs=None, **more) -> Stage:
    found = Stage(path, job(rounds=rounds, prompts=8, responses=4, tail=tail or AUTO, stream=stream, **more))
    engine = EngineKind(LATENCY, kv_tokens=100_000, max_sequences=64, stream_seconds=0.1)
    found.world = SimulatedCluster(
        0, ClusterSpec(replicas=2, engine=engine, lengths=lengths), costs, observe=found.observe
    )
    return found


# --- whole runs ---


@pytest.fixture(scope="module")
def racing(tmp_path_factory):
    """Reports of a job that begins to race."""
    run = stage(tmp_path_factory.mktemp("racing") / "state.db")
    assert run.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    return run.closed


def test_a_job_with_a_tail_begins_to_race_and_says_why(racing):
    first, second, *rest = racing
    assert [first.plan, second.plan] == ["plain", "plain"]
    assert "are needed to predict" in first.plan_reason
    assert first.predicted_seconds is None
    assert any(report.plan.startswith("race ") for report in rest)
    racing = next(report for report in rest if report.plan.startswith("race "))
    assert racing.predicted_speedup > 1.1
    assert "responses" in racing.plan_reason
    assert "speed of the engines" in racing.plan_reason
    assert {report.kind for report in rest} & {RoundKind.SHORT}
    # Seconds of rounds that were predicted, against the prediction: the engines were seen, the lengths are chance.
    predicted = [report for report in rest if report.predicted_seconds]
    assert len(predicted) == len(rest)
    ratio = sum(one.seconds for one in predicted) / sum(one.predicted_seconds for one in predicted)
    assert 0.6 < ratio < 1.6


def test_a_job_without_a_tail_stays_plain(tmp_path):
    run = stage(tmp_path / "state.db", even, rounds=6)
    assert run.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert {report.plan for report in run.closed} == {"plain"}
    predicted = [report for report in run.closed if report.predicted_seconds]
    assert len(predicted) == 4
    for report in predicted:
        assert report.seconds == pytest.approx(report.predicted_seconds, rel=0.15)
        assert report.predicted_speedup == 1.0


def test_streaming_is_chosen_where_updates_take_long(tmp_path):
    run = stage(
        tmp_path / "state.db",
        rounds=8,
        tail={"enabled": False},
        stream="Auto",
        costs=TrainerCosts(step=0.1, token=0.01),
    )
    assert run.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert run.closed[0].plan == "plain"
    assert run.closed[-1].plan == "plain, stream"
    assert [report.early_groups > 0 for report in run.closed] == ["stream" in report.plan for report in run.closed]
    quick = stage(tmp_path / "quick.db", rounds=4, tail={"enabled": False}, stream="Auto", costs=TrainerCosts(step=0.1))
    quick.play(first_responses=64)
    assert {report.plan for report in quick.closed} == {"plain"}


def test_rounds_that_cost_too_much_to_predict_are_plain(tmp_path, monkeypatch):
    monkeypatch.setattr("rljob_runtime.scheduling.round_planner.planner.PILOT_EVENTS", 1)
    run = stage(tmp_path / "state.db", rounds=4)
    assert run.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert {report.plan for report in run.closed} == {"plain"}
    assert {report.predicted_seconds for report in run.closed} == {None}
    assert "costs more to predict" in run.closed[-1].plan_reason


def test_what_the_spec_fixes_is_played_without_a_prediction(tmp_path):
    run = stage(tmp_path / "state.db", rounds=3, tail={"enabled": True, "promptFactor": 1.5, "responseFactor": 1})
    run.play()
    assert {report.plan for report in run.closed} == {"race 1.5 x 1"}
    assert {report.predicted_seconds for report in run.closed} == {None}


def two_layouts(path, tail=None):
    """Machines of two accelerators. Together they are faster than one, and not twice as fast."""
    found = Stage(path, job(rounds=8, prompts=8, responses=4, tail=tail or {"enabled": False}))
    narrow = EngineKind(LATENCY, kv_tokens=100_000, max_sequences=64, stream_seconds=0.1)
    wide = EngineKind(LatencyModel(((1, 0.012), (64, 0.024)), 1e-6, 0.01, 1e-5, 0.0), 250_000, 64, stream_seconds=0.1)
    site = ClusterSpec(replicas=2, engine=narrow, wider=((2, wide),), lengths=even)
    found.world = SimulatedCluster(0, site, observe=found.observe)
    return found


async def change_the_layout(run):
    await until(lambda: len(run.closed) == 3, tick=0.01)
    run.control.set_tensor_parallel(2, 2)


def test_a_round_is_predicted_in_every_observed_layout(tmp_path):
    run = two_layouts(tmp_path / "state.db")
    done = run.play(change_the_layout, first_responses=64, tensor_parallel_sizes=(1, 2))
    assert done.outcome is FinishedOutcome.COMPLETE
    sizes = [report.tensor_parallel_size for report in run.closed]
    assert sizes in ([1] * 3 + [2] * 5, [1] * 4 + [2] * 4)
    predicted = [
        {one.tensor_parallel_size: one.seconds for one in report.layout_forecasts or ()} for report in run.closed
    ]
    first = sizes.index(2)
    assert predicted[: first + 1] == [{}] * (first + 1), "one layout was seen"
    for report, seconds in zip(run.closed[first + 1 :], predicted[first + 1 :], strict=True):
        assert seconds[2] == pytest.approx(report.seconds, rel=0.03)
        assert seconds[1] == pytest.approx(run.closed[2].seconds, rel=0.03)
    assert {report.plan_reason for report in run.closed} == {""}, "nothing was chosen"


def test_a_layout_that_is_not_allowed_is_not_predicted(tmp_path):
    run = two_layouts(tmp_path / "state.db", tail=AUTO)
    run.play(change_the_layout, first_responses=64, tensor_parallel_sizes=(2, 4))
    assert {report.layout_forecasts for report in run.closed} == {None}
    assert run.closed[-1].predicted_seconds


def elastic(path, machines: int, lengths=even, rounds=8, smallest=1, largest=4, engines=1):
    """A job whose number of machines is the operator's to choose, each with so many engines."""
    rollout = {"machines": machines, "minMachines": smallest, "maxMachines": largest, "slotsPerMachine": engines}
    rollout["engine"] = "Reference"
    of = job(rounds=rounds, prompts=8, responses=4, tail={"enabled": False}, rollout=rollout)
    found = Stage(path, of, machines=machines)
    # A step takes as long as its batch is large: what is split is done in half the time.
    latency = LatencyModel(((1, 0.005), (64, 0.32)), 1e-6, 0.0, 1e-5, 0.0)
    engine = EngineKind(latency, kv_tokens=100_000, max_sequences=64)
    found.world = SimulatedCluster(
        0, ClusterSpec(replicas=engines, engine=engine, lengths=lengths), observe=found.observe
    )
    return found


def machine_forecasts(report: RoundReport) -> dict[int, float]:
    return {one.machines: one.seconds for one in report.machine_forecasts or ()}


def test_a_round_is_predicted_with_one_machine_less_and_one_more(tmp_path):
    seconds = {}
    for machines in (1, 2, 3):
        # Where the operator chooses nothing, as the job has one number.
        fixed = elastic(tmp_path / f"{machines}.db", machines, smallest=machines, largest=machines)
        assert fixed.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
        assert {report.machine_forecasts for report in fixed.closed} == {None}
        seconds[machines] = fixed.closed[-1].seconds
    assert seconds[1] > 1.3 * seconds[2] > 1.3 * 1.1 * seconds[3]
    run = elastic(tmp_path / "state.db", 2, rounds=4)
    assert run.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert [bool(report.machine_forecasts) for report in run.closed] == [False, False, True, True]
    for report in run.closed[2:]:
        told = machine_forecasts(report)
        assert told == {machines: pytest.approx(seconds[machines], rel=0.1) for machines in (1, 2, 3)}


def test_no_machine_beyond_a_bound_is_predicted(tmp_path):
    run = elastic(tmp_path / "state.db", 2, rounds=3, smallest=1, largest=2, engines=2)
    run.play(first_responses=64)
    told = machine_forecasts(run.closed[-1])
    assert told.keys() == {1, 2}
    assert told[2] == pytest.approx(run.closed[-1].seconds, rel=0.1)


def test_a_job_with_parallel_work_grows_and_one_with_a_long_tail_shrinks(tmp_path):
    """The whole loop: the coordinator predicts, the operator's policy chooses, the coordinator follows."""
    grows = elastic(tmp_path / "grows.db", 1, rounds=30)
    assert grows.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert len(grows.control.last.relay.chain) > 1
    assert "one machine more was predicted to contribute" in grows.control._target.reason
    assert grows.closed[-1].seconds < 0.8 * grows.closed[3].seconds

    def one_long(key: TrajectoryKey, version: int) -> int:
        return 40 if (key.prompt.index, key.sample) == (key.prompt.index // 8 * 8, 0) else 1

    shrinks = elastic(tmp_path / "shrinks.db", 3, one_long, rounds=30)
    assert shrinks.play(first_responses=64).outcome is FinishedOutcome.COMPLETE
    assert shrinks.control.last.relay.chain == ("rollout-0",)
    assert "the last machine was predicted to contribute" in shrinks.control._target.reason
    for run in (grows, shrinks):
        ids = run.trained_ids()
        assert len(ids) == len(set(ids)) == 30 * 8 * 4


def test_another_coordinator_plays_the_round_as_it_was_decided(tmp_path, racing):
    """It is killed in the middle of a round that races; the next one goes on with that round, and predicts nothing."""
    step = next(report.round for report in racing if report.plan.startswith("race "))
    run = stage(tmp_path / "state.db")

    async def stop():
        await until(lambda: run.coordinator is not None and len(run.closed) == step - 1)
        await until(lambda: (found := run.coordinator.loop.generation) is not None and found.round.progress > 0.2)
        run.coordinator.stop()

    async def lives():
        stopping = asyncio.create_task(stop())
        assert await run.coordinate(first_responses=64) is None
        await stopping
        # This one would predict nothing, and play plain rounds: what was decided with the draw holds.
        return await run.coordinate(first_responses=10_000)

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    opened_plan = racing[step - 1].plan
    report = run.closed[step - 1]
    assert (report.round, report.plan) == (step, opened_plan)
    assert report.predicted_seconds is None
    assert run.closed[step].plan == "plain"


def test_the_status_and_the_metrics_tell_the_plan(tmp_path):
    run = stage(tmp_path / "state.db", rounds=4)
    run.play(first_responses=64)
    told = [status for status in run.control.reports if status.round == 3]
    assert {status.plan for status in told} >= {run.closed[2].plan}
    assert any("speed of the engines" in (status.plan_reason or "") for status in told)
    metrics = CoordinatorMetrics()
    trained = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)
    metrics.round(RoundReport(round=3, plan="race 1 x 1.5", seconds=12.0, predicted_seconds=10.0), trained)
    text = generate_latest(metrics.registry).decode()
    assert 'rljob_coordinator_plans_total{plan="race 1 x 1.5"} 1.0' in text
    assert float(text.split("\nrljob_coordinator_prediction_error ")[1].split()[0]) == pytest.approx(0.2)


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 12))])
def test_auto_holds_the_invariants_under_faults(seed):
    drawn = draw_scenario(seed)
    scenario = replace(drawn, auto=True, rounds=5, prompts=min(drawn.prompts, 6), responses=min(drawn.responses, 4))
    plan = FaultPlan.parse(f"9 crash coordinator 1; {14 + seed} crash rollout-0 3; {21 + seed} crash trainer 2")
    outcome = simulate(scenario, plan)
    assert outcome.passed, outcome.violation


# --- what is remembered ---


def test_lengths_of_closed_rounds_are_kept_as_far_as_they_came(tmp_path):
    run = stage(tmp_path / "state.db", rounds=4, tail={"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5})
    run.play()
    store = Store(tmp_path / "state.db", "uid-1")
    rounds = store.remembered(1).rounds
    store.close()
    assert [one.report.round for one in rounds] == [1, 2, 3, 4]
    assert [one.chosen.plan for one in rounds] == [Plan(Factors(1.5, 1.5))] * 4
    short, plain = rounds[0], rounds[-1]
    assert (short.report.kind, plain.report.kind) == (RoundKind.SHORT, RoundKind.PLAIN)
    seen = [response for prompt in short.prompts.values() for response in prompt.responses]
    assert len(seen) == short.report.launched_responses
    assert sum(not one.ended for one in seen) >= short.report.aborted_responses - 12
    assert all(one.ended for prompt in plain.prompts.values() for one in prompt.responses)
    assert {prompt.queued for prompt in short.prompts.values()} == {False}
    assert sum(one.tokens for one in seen) <= short.report.tokens
    assert all(one.speed.replicas == 4 for one in rounds)
    # What all engines held that were seen from their start: 12 prompts of 3 tokens, 6 times each.
    assert 0 < sum(one.prompt_tokens for one in rounds[1].speed.stretches) <= 12 * 6 * 3
    assert any(prompt.queued for one in rounds for prompt in one.prompts.values())


def test_what_ended_at_a_limit_that_was_raised_since_counts_as_stopped(tmp_path):
    """`maxResponseTokens` is edited while the job is suspended."""
    run = stage(tmp_path / "state.db", rounds=1)
    run.play()
    db = sqlite3.connect(tmp_path / "state.db")
    told = db.execute("SELECT epoch, idx, sample, tokens FROM trajectories").fetchall()
    limit = max(tokens for *_, tokens in told)
    db.execute("UPDATE trajectories SET finish = 'length' WHERE tokens = ?", (limit,))
    db.commit()
    db.close()
    store = Store(tmp_path / "state.db", "uid-1")
    (then,), (now,) = store.remembered(limit).rounds, store.remembered(limit + 1).rounds
    store.close()
    ended = {(key, one.tokens, one.ended) for key, prompt in then.prompts.items() for one in prompt.responses}
    assert {known for *_, known in ended} == {True}
    since = {(key, one.tokens, one.ended) for key, prompt in now.prompts.items() for one in prompt.responses}
    assert since == {(key, tokens, tokens < limit) for key, tokens, _ in ended}


def test_a_round_that_was_restored_near_its_end_counts_all_replicas(tmp_path):
    """The next one is predicted for as many as there are, not for those that had something left to do."""
    run = stage(tmp_path / "state.db", rounds=1)
    busy: set[str] = set()

    def near_its_end() -> bool:
        found = run.coordinator.loop.generation if run.coordinator is not None else None
        return found is not None and found.round.progress > 0.9

    async def lives():
        first = asyncio.create_task(run.coordinate())
        await until(near_its_end, tick=0.01)
        run.coordinator.stop()
        assert await first is None
        run.watchers.append(lambda event: busy.add(event.replica) if isinstance(event, Submitted) else None)
        return await run.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    assert 0 < len(busy) < 4
    store = Store(tmp_path / "state.db", "uid-1")
    (seen,) = store.remembered(1).rounds
    store.close()
    assert seen.speed.replicas == 4


@pytest.mark.parametrize(
    ("streamed", "plan"), [(range(0), "plain, stream"), (range(2, 3), "plain"), (range(3, 15), "plain")]
)
def test_engine_speed_during_training_is_remembered_without_limit(tmp_path, streamed, plan):
    """Engines are three times slower there, which costs more than streaming gains. Of 14 rounds these streamed."""
    costs = TrainerCosts(step=0.1, token=0.01)
    run = stage(tmp_path / "state.db", rounds=14, tail={"enabled": False}, costs=costs)
    run.play()
    db = sqlite3.connect(tmp_path / "state.db")
    for step in streamed:
        (chosen,) = db.execute("SELECT chosen FROM decisions WHERE step = ?", (step,)).fetchone()
        (told,) = db.execute("SELECT speed FROM speeds WHERE step = ?", (step,)).fetchone()
        speed = Speed.from_json(told)
        slow = replace(speed, stretches=tuple(replace(one, seconds=3 * one.seconds) for one in speed.stretches))
        chosen = replace(SelectedPlan.from_json(chosen), plan=Plan(stream=True)).to_json()
        db.execute("UPDATE decisions SET chosen = ? WHERE step = ?", (chosen, step))
        db.execute("UPDATE speeds SET speed = ? WHERE step = ?", (slow.to_json(), step))
    db.commit()
    db.close()
    settings = replace(Settings.of(job(rounds=30, prompts=8, responses=4, stream="Auto")), first_responses=64)
    store = ObservedStore(tmp_path / "state.db", "uid-1", lambda event: None)
    chosen = virtual_time.run(planned(store, settings, run, 15, 16))
    store.close()
    assert str(chosen.plan) == plan


@pytest.mark.parametrize(
    "loaned", [range(0), range(5, 15), range(3, 15)], ids=["none", "many", "all that are looked at"]
)
def test_rounds_with_loans_teach_no_update_cost(tmp_path, loaned):
    """There the update finds next to nothing left to do. If that were what it costs, to stream would bring nothing."""
    run = stage(tmp_path / "state.db", rounds=14, tail={"enabled": False}, costs=TrainerCosts(step=0.1, token=0.01))
    run.play()
    db = sqlite3.connect(tmp_path / "state.db")
    for step in loaned:
        (told,) = db.execute("SELECT report FROM boundaries WHERE step = ?", (step,)).fetchone()
        report = RoundReport.model_validate_json(told).model_copy(
            update={"loaned_machines": 1, "training_seconds": 0.01}
        )
        text = report.model_dump_json(by_alias=True, exclude_none=True)
        db.execute("UPDATE boundaries SET report = ? WHERE step = ?", (text, step))
    db.commit()
    db.close()
    settings = replace(Settings.of(job(rounds=30, prompts=8, responses=4, stream="Auto")), first_responses=64)
    store = ObservedStore(tmp_path / "state.db", "uid-1", lambda event: None)
    chosen = virtual_time.run(planned(store, settings, run, 15, 16))
    store.close()
    assert str(chosen.plan) == "plain, stream"


@pytest.mark.parametrize("predicted", [True, False])
def test_an_unexplained_round_restarts_the_length_history(tmp_path, predicted):
    """But not if it was taken up by another coordinator: then its seconds were not measured as they were predicted."""
    run = stage(tmp_path / "state.db", rounds=6)
    run.play(first_responses=64)
    db = sqlite3.connect(tmp_path / "state.db")
    (told,) = db.execute("SELECT chosen FROM decisions WHERE step = 6").fetchone()
    was = SelectedPlan.from_json(told)
    assert was.explained > was.seconds
    db.execute("UPDATE decisions SET chosen = ? WHERE step = 6", (replace(was, explained=0.01).to_json(),))
    if not predicted:
        db.execute("UPDATE boundaries SET report = json_remove(report, '$.predictedSeconds')")
    db.commit()
    db.close()
    settings = replace(Settings.of(job(rounds=30, prompts=8, responses=4, tail=AUTO)), first_responses=64)
    store = ObservedStore(tmp_path / "state.db", "uid-1", lambda event: None)
    chosen = virtual_time.run(planned(store, settings, run, 7, 24))
    store.close()
    if predicted:
        assert chosen.plan == Plan()
        assert chosen.reason.startswith("1 rounds with ")
        assert "since lengths changed in round 6" in chosen.reason
    else:
        assert chosen.seconds is not None


@pytest.mark.parametrize(
    ("spec", "plans"),
    [
        ({}, 1),
        ({"tail": {"enabled": True, "promptFactor": "Auto"}}, 3),
        ({"tail": AUTO, "stream": "Auto"}, 18),
        ({"stream": "Auto"}, 2),
    ],
)
def test_the_spec_leaves_open_what_is_auto(spec, plans):
    assert len(Settings.of(job(**spec)).choices.plans) == plans


# --- what is seen of engines ---


@pytest.mark.parametrize("waves", [1, 12], ids=["one launch", "turns that come and go"])
@pytest.mark.parametrize("poll_seconds", [0.05, 0.5, 2.0])
def test_the_watch_finds_the_latency_of_an_engine_that_it_polls(poll_seconds, waves):
    """Whatever begins, ends and waits between two polls."""
    random, watch, engine = Random(0), EngineObserver(), EngineSimulator(ONE_PASS, 1 << 20, 256)
    arrivals = [round(random.uniform(0.0, 40.0), 2) * (wave > 0) for wave in range(waves)]

    def poll(now: float) -> None:
        load = engine.load(now)
        stats = EngineStats(
            load.running, load.waiting, load.kv_use, load.preemptions, load.generated_tokens, 0, 0, 0, 0,
            kv_tokens=1 << 20, max_running=256, decode=load.decode, prefill=load.prefill, square_tokens=1e-5,
        )  # fmt: skip
        watch.record("r", ReplicaReport("1", 0, (), 1, stats))

    poll(0.0)
    watch.record_submitted(["r"], ["r"])
    requests = [Request(n, 50, random.choice([20, 60, 150, 400])) for n in range(48)]
    launches = sorted((arrivals[n % waves], n) for n in range(48))
    now = 0.0
    while launches or engine.next_event < float("inf"):
        now = round(now + poll_seconds, 6)
        while launches and launches[0][0] <= now:
            at, number = launches.pop(0)
            engine.submit(at, [requests[number]])
        engine.advance(now)
        poll(now)
    speed = watch.speeds()[1]
    assert (speed.replicas, speed.kv_tokens, speed.max_running) == (1, 1 << 20, 256)
    assert sum(one.prompt_tokens for one in speed.stretches) == 48 * 50
    assert sum(one.prompt_squares for one in speed.stretches) == 48 * 50**2
    assert speed.square_tokens == 1e-5
    latency = fit_latency([speed])
    for batch, mean in ((40, 80), (10, 200), (3, 300)):
        assert latency.step(batch, batch * mean) == pytest.approx(LATENCY.step(batch, batch * mean), rel=0.02)


def test_the_watch_learns_nothing_from_another_boot():
    watch = EngineObserver()
    for boot, steps in (("1", 10), ("2", 30), ("2", 30)):
        decode = StepTotals(steps, 4 * steps, 0, 0, 1.0 * steps)
        watch.record("r", ReplicaReport(boot, 0, (), 1, EngineStats(4, 0, 0.1, 0, 0, 0, 0, 0, decode=decode)))
    assert watch.speeds() == {}


def test_a_replica_that_released_accelerators_reports_no_full_cache():
    watch = EngineObserver()
    stats = EngineStats(4, 0, 0.1, 0, 100, 0, 0, 0, kv_tokens=500, max_running=8)
    watch.record("r", ReplicaReport("1", 0, (), 1, stats))
    watch.record("r", ReplicaReport("1", 0, (), None, replace(stats, running=0, kv_tokens=0, max_running=0)))
    watch.record_submitted(["r"], ["r"])
    assert (watch.speeds()[1].kv_tokens, watch.speeds()[1].max_running) == (500, 8)


def test_replicas_asleep_since_a_layout_change_are_not_counted():
    size = 1
    before, watch = EngineObserver(lambda replica: size), EngineObserver(lambda replica: size)
    small, large = (EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, kv_tokens=room, max_running=8) for room in (100, 250))
    first, second = names = ("rollout-0/replica-0", "rollout-0/replica-1")
    for name in names:
        before.record(name, ReplicaReport("1", 0, (), 1, small))
    watch.continue_from(before)
    assert (watch.kv_tokens(first), watch.kv_tokens(second)) == (100, 100)
    size = 2
    assert watch.kv_tokens(first) == 0, "the engine of this layout was not polled yet"
    watch.record_submitted([first], [first])
    watch.record(first, ReplicaReport("1", 0, (), 1, large))
    assert list(watch.speeds()) == [2]
    assert (watch.speeds()[2].replicas, watch.speeds()[2].kv_tokens) == (1, 250)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 5)), min_size=1, max_size=6))
def test_each_layout_of_a_round_has_its_own_latency(phases):
    """A machine whose engines switch, also back, between polls: no sample spans two layouts."""
    seconds, size, steps = {1: 0.1, 2: 0.06, 4: 0.04}, 1, NO_STEPS
    watch = EngineObserver(lambda replica: size)

    def poll() -> None:
        stats = EngineStats(4, 0, 0.0, 0, 0, 0, 0, 0, kv_tokens=size * 1000, max_running=8, decode=steps)
        watch.record("r", ReplicaReport("1", 0, (), 1, stats))

    polls = Counter()
    before = None
    for phase_size, count in phases:
        fresh, size = phase_size != before, phase_size
        before = size
        if fresh:
            watch.record_submitted(["r"], ["r"])
        for _ in range(count):
            steps += StepTotals(10, 40, seconds=10 * seconds[size])
            poll()
        polls[size] += count - fresh
    found = watch.speeds()
    assert set(found) == {size for size, _ in phases}
    for one, speed in found.items():
        assert speed.kv_tokens == one * 1000
        assert sum(stretch.steps for stretch in speed.stretches) == pytest.approx(10 * polls[one])
        latency = watch.engine_speed(one)
        assert (latency is None) == (polls[one] == 0)
        if latency is not None:
            assert latency.decode(4, 0, 1) == pytest.approx(seconds[one], rel=0.01)
    later = EngineObserver(lambda replica: size)
    later.continue_from(watch)
    assert {one: later.engine_speed(one) for one in found} == {one: watch.engine_speed(one) for one in found}
