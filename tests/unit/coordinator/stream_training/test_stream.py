"""Stream training on the coordinator's side: final groups go to the trainer while others generate, and nothing depends
on it. Whole runs of the real coordinator under virtual time."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.status import FinishedOutcome, LoanReport, RoundKind
from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.round_log import RoundLog
from rljob_runtime.coordinator.stream_training.loaned_worker import tokens_of
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.coordinator.stream_training.stream import Streamed, Streaming
from rljob_runtime.protocols import Refused, TrainReport
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.lending.contributions import CALL_SECONDS
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.scheduling.lending.policy import LoanRules
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import RoundPlan, RoundRules, RoundShape
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Contributed, Generated, Trained
from rljob_runtime.simulator.peers.cluster import ClusterSpec, SimulatedCluster
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from tests.support.simulated_job import Stage, job, until
from tests.support.stream_training import ScriptedTrainer, some

PER_TOKEN = TrainerCosts(step=0.2, token=0.01)


def streaming_stage(path: Path, on: bool = True, costs: TrainerCosts = PER_TOKEN, **settings) -> tuple[Stage, list]:
    stage, events = Stage(path, job=job(prompts=6, stream=on, **settings)), []
    stage.world = SimulatedCluster(0, ClusterSpec(stage.replicas), costs, stage.observe)
    stage.watchers.append(events.append)
    return stage, events


# --- which groups are final ---


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 1), st.booleans(), st.data())
def test_what_is_told_as_whole_is_trained_on_with_the_places_it_had(groups, extra, size, race, drop, data):
    """In whatever order responses end, rewards come and fail, prompts are replaced and a former coordinator left it."""
    prompts = tuple(PromptKey(0, index) for index in range(groups + extra))
    shape = RoundShape(RoundKind.SHORT, len(prompts), size + race, groups, size)
    round_ = Round(RoundPlan(1, 1, shape, prompts, RoundRules(1, drop_equal=drop, max_prompts=2 * len(prompts))))
    told: dict[PromptKey, list] = {}
    for number in range(200):
        for prompt in round_.drain_complete():
            assert prompt not in told
            told[prompt] = round_.places(prompt)
        if round_.missing:
            round_.extend(tuple(PromptKey(1 + number, index) for index in range(round_.missing)))
        if round_.complete:
            break
        round_.launch(["r"])
        key = data.draw(st.sampled_from(round_.in_state("running", "generated")))
        if lease := round_.lease(key):
            round_.generated(key, lease)
        elif data.draw(st.integers(0, 5)) == 0:
            round_.reward_failed(key, round_._samples[key].attempt, RewardFailure())
        else:
            round_.scored(key, round_._samples[key].attempt, data.draw(st.sampled_from([0.0, 1.0])))
    else:
        pytest.fail("the round does not end")
    for prompt in round_.drain_complete():
        told[prompt] = round_.places(prompt)
    settled = round_.settle()
    assert set(told) == set(settled.groups)
    assert settled.kept == tuple(key for prompt in settled.groups for key in told[prompt])


# --- whole runs ---


def test_gradients_are_computed_beside_generation(tmp_path):
    plain, _ = streaming_stage(tmp_path / "plain.db", on=False)
    assert plain.play().outcome is FinishedOutcome.COMPLETE
    stage, events = streaming_stage(tmp_path / "state.db")
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert stage.trained_ids() == plain.trained_ids()
    for without, with_ in zip(plain.closed, stage.closed, strict=True):
        assert (without.early_groups, without.overlap_seconds) == (0, 0.0)
        assert 0 < with_.early_groups <= 6
        assert 0 < with_.overlap_seconds <= with_.generation_seconds
        assert with_.training_seconds < without.training_seconds
        assert with_.generation_seconds == pytest.approx(without.generation_seconds, rel=0.1)
        assert with_.seconds < without.seconds
    # No group's gradient is computed twice.
    contributed = [(e.step, prompt) for e in events if isinstance(e, Contributed) for prompt in e.prompts]
    assert len(contributed) == len(set(contributed))
    assert max(e.since for e in events if isinstance(e, Contributed)) < max(
        e.since for e in events if isinstance(e, Trained)
    )


def test_racing_rounds_hand_over_what_won_only(tmp_path):
    stage, events = streaming_stage(
        tmp_path / "state.db", rounds=6, tail={"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}
    )
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    trained = {e.step: {group.prompt for group in e.groups} for e in events if isinstance(e, Trained)}
    for event in events:
        if isinstance(event, Contributed):
            assert set(event.prompts) <= trained[event.step]
    assert sum(report.early_groups for report in stage.closed) > 0
    assert {report.kind for report in stage.closed} == {RoundKind.SHORT, RoundKind.LONG}


def test_calls_are_bounded_and_one_at_a_time(tmp_path):
    stage, events = streaming_stage(tmp_path / "state.db", costs=TrainerCosts(step=0.1, token=0.02))
    assert stage.play(stream_tokens=80).outcome is FinishedOutcome.COMPLETE
    tokens = {
        (event.step, group.prompt): tokens_of([group])
        for event in events
        if isinstance(event, Trained)
        for group in event.groups
    }
    calls = [[tokens[e.step, prompt] for prompt in e.prompts] for e in events if isinstance(e, Contributed)]
    assert all(len(call) == 1 or sum(call) <= 80 for call in calls)
    assert max(map(len, calls)) > 1


def test_a_slow_trainer_delays_no_generation(tmp_path):
    """It computes far longer than generation takes: the round's generation is as long as without it."""
    plain, _ = streaming_stage(tmp_path / "plain.db", on=False, rounds=1)
    plain.play()
    stage, events = streaming_stage(tmp_path / "state.db", rounds=1, costs=TrainerCosts(step=0.2, token=0.1))
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    (report,) = stage.closed
    assert report.generation_seconds == pytest.approx(plain.closed[0].generation_seconds, rel=0.1)
    last = max(event.since for event in events if isinstance(event, Generated))
    assert all(event.since <= last + 60 for event in events if isinstance(event, Contributed))
    assert report.overlap_seconds <= report.generation_seconds


def test_a_trainer_lost_under_its_groups_costs_nothing_of_the_round(tmp_path):
    stage, events = streaming_stage(tmp_path / "state.db", every_rounds=1)

    async def kill(stage):
        await until(lambda: any(isinstance(e, Contributed) and e.step == 2 for e in events))
        stage.world.kill_process("trainer")

    assert stage.play(kill).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3]
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 3 * 6 * 2
    # The new trainer has nothing of what the old one was given.
    assert stage.closed[1].early_groups == 0
    assert stage.closed[2].early_groups > 0
    generated = [event.key for event in events if isinstance(event, Generated)]
    assert len(generated) == len(set(generated)), "a response was generated twice"


def test_a_coordinator_that_comes_back_hands_over_nothing_twice(tmp_path):
    stage, events = streaming_stage(tmp_path / "state.db")

    async def stop():
        await until(lambda: any(isinstance(e, Contributed) and e.step == 2 for e in events))
        stage.coordinator.stop()

    async def lives():
        stopping = asyncio.create_task(stop())
        assert await stage.coordinate() is None
        await stopping
        return await stage.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    contributed = [(e.step, prompt) for e in events if isinstance(e, Contributed) for prompt in e.prompts]
    assert len(contributed) == len(set(contributed))
    assert stage.rounds == [1, 2, 3]
    assert stage.closed[1].early_groups > 0


# --- the stream alone ---


def test_what_waits_goes_together_and_generation_end_stops_it():
    async def program():
        trainer = ScriptedTrainer(1.0, 1.0, 9.0)
        stream = Streaming(trainer, 1, 1, 1, 3, LoanMeasurements())
        stream.offer(some(1))
        await asyncio.sleep(0.5)
        stream.offer(some(2, 3))
        stream.offer(some(4, 5))
        await asyncio.sleep(2.0)
        stream.offer(some(6))
        overlap = (await stream.finish()).overlap_seconds
        await stream.close()
        return [[group.prompt.index for group in call] for call in trainer.calls], overlap

    calls, overlap = virtual_time.run(program())
    assert calls == [[1], [2, 3, 4], [5]]
    assert overlap == pytest.approx(2.5)


def test_a_call_is_short_where_the_trainer_is_slow():
    async def program():
        trainer, measured = ScriptedTrainer(), LoanMeasurements()
        measured.training.record(10, CALL_SECONDS)
        stream = Streaming(trainer, 1, 1, 1, 1000, measured)
        stream.offer([*some(1, 2, 3, tokens=4), *some(4, tokens=99)])
        await asyncio.sleep(5.0)
        await stream.finish()
        return [[group.prompt.index for group in call] for call in trainer.calls]

    # Eight tokens, then one group that is longer than a call should be.
    assert virtual_time.run(program())[:2] == [[1, 2], [3]]


def test_what_was_in_already_tells_nothing_of_the_trainers_speed():
    class Knows(ScriptedTrainer):
        async def contribute(self, term, step, groups):
            return replace(await super().contribute(term, step, groups), tokens=0)

    async def program(trainer):
        measured = LoanMeasurements()
        stream = Streaming(trainer, 1, 1, 1, 1000, measured)
        stream.offer(some(1, 2))
        await asyncio.sleep(0.1)
        await stream.finish()
        return measured.training.seconds

    assert virtual_time.run(program(Knows(0.001))) is None
    assert virtual_time.run(program(ScriptedTrainer(3.0))) == 1.5


@pytest.mark.parametrize("error", [Refused("no"), TrainerLost("gone")], ids=["refused", "lost"])
def test_after_a_failed_call_nothing_more_is_handed_over(error):
    async def program():
        trainer = ScriptedTrainer(error)
        stream = Streaming(trainer, 1, 1, 1, 1, LoanMeasurements())
        stream.offer(some(1, 2))
        await asyncio.sleep(1.0)
        stream.offer(some(3))
        assert await stream.finish() == Streamed()
        return len(trainer.calls)

    assert virtual_time.run(program()) == 1


def test_what_is_asked_of_a_stream_that_is_off_is_nothing():
    async def program():
        trainer = ScriptedTrainer()
        stream = Streaming(trainer, 1, 1, 1, 0, LoanMeasurements())
        stream.offer(some(1))
        await asyncio.sleep(1.0)
        assert await stream.finish() == Streamed()
        return trainer.calls

    assert virtual_time.run(program()) == []


def test_the_figures_are_in_the_log_and_in_the_metrics(tmp_path):
    stage, _ = streaming_stage(tmp_path / "state.db", rounds=1)
    stage.play()
    (report,) = stage.closed
    trained = TrainReport(1, 0.0, 1.0, 1e-3, 0.0, 0.0, 1.0, 10, 1.0, report.early_groups)
    RoundLog(tmp_path / "log")(report, trained)
    line = json.loads((tmp_path / "log" / "rounds.jsonl").read_text())
    assert line["earlyGroups"] == report.early_groups > 0
    assert line["overlapSeconds"] == report.overlap_seconds
    metrics = CoordinatorMetrics()
    metrics.round(report.model_copy(update={"early_groups": 3, "overlap_seconds": 1.5}), trained)
    assert metrics.registry.get_sample_value("rljob_coordinator_early_groups_total") == 3
    assert metrics.registry.get_sample_value("rljob_coordinator_overlap_seconds_total") == 1.5
    loan = {"loan": LoanReport(state="Loaned"), "loaned_machines": 2, "loaned_groups": 5, "predicted_gain_seconds": 7.5}
    loaned = report.model_copy(update=loan)
    metrics.round(loaned, trained)
    for name, value in (("lent_machines_total", 2), ("worker_groups_total", 5), ("predicted_gain_seconds", 7.5)):
        assert metrics.registry.get_sample_value(f"rljob_coordinator_{name}") == value
    RoundLog(tmp_path / "log")(loaned, trained)
    line = json.loads((tmp_path / "log" / "rounds.jsonl").read_text().splitlines()[-1])
    assert [line[key] for key in ("loan", "loanedMachines", "loanedGroups", "predictedGainSeconds")] == [
        {"state": "Loaned"},
        2,
        5,
        7.5,
    ]


# --- what a look at the round is told ---


def test_tokens_of_a_call_under_way_count_as_its_time_passes():
    async def program():
        measured = LoanMeasurements()
        measured.training.record(1, 0.01)
        stream, seen = Streaming(ScriptedTrainer(10.0), 1, 1, 1, 2000, measured), []
        stream.offer(some(1, tokens=1000))
        for wait in (0.0, 2.5, 7.0, 3.0):
            await asyncio.sleep(wait)
            seen.append(stream.computed_tokens)
        await stream.close()
        return seen

    assert virtual_time.run(program()) == [0, 250, 950, 1000]


def test_the_trainers_speed_counts_only_concurrently_with_generation():
    async def program(rules, *outcomes):
        measured = LoanMeasurements()
        measured.training.record(100, 1.0)
        stream = Streaming(ScriptedTrainer(*outcomes), 1, 1, 1, 2000, measured)
        loans = LoanManager(rules, None, stream, measured, 1)
        stream.offer(some(1))
        await asyncio.sleep(5.0)
        await stream.finish()
        return loans.training_token

    assert virtual_time.run(program(LoanRules(), 0.01)) == pytest.approx(0.01)
    assert virtual_time.run(program(None, 0.01)) is None, "a round that does not stream"
    assert virtual_time.run(program(LoanRules(), TrainerLost("it is away"))) is None, "it begins again at the update"
