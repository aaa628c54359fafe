"""Whole runs of the real coordinator over simulated machines, under virtual time."""

import asyncio

import pytest

from rljob_api.status import FinishedOutcome, TargetPhase
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.simulator.core.network import FaultKind
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from tests.support.simulated_job import Stage, job, until


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "state.db")


def check_trained_once(stage: Stage, rounds: int = 3, prompts: int = 3, responses: int = 2) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == rounds * prompts * responses


def test_a_job_runs_to_its_end(stage):
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3]
    check_trained_once(stage)
    last = stage.control.last
    assert (last.round, last.stage, last.weight_version) == (3, "Finished", 4)
    assert last.finished == finished
    assert last.totals.trained_trajectories == 18
    assert last.relay.chain == ("rollout-0", "rollout-1")
    assert last.checkpoint.round == 3
    assert last.applied == 1


def test_the_same_seed_is_the_same_run(tmp_path):
    runs = []
    for name in ("a", "b"):
        stage = Stage(tmp_path / name, seed=5)
        stage.play()
        runs.append((stage.control.reports, stage.trained_ids()))
    assert runs[0] == runs[1]


def test_both_machines_generate_and_groups_are_spread(stage):
    held = set()

    async def watch(stage):
        while True:
            for name in ("rollout-0", "rollout-1"):
                process = stage.world.process(f"{name}/replica-0")
                if process is not None:
                    held.update((key, name) for key in process.peer.held)
            await asyncio.sleep(0.01)

    stage.play(watch)
    for prompt in {key.prompt for key, _ in held}:
        assert {name for key, name in held if key.prompt == prompt} == {"rollout-0", "rollout-1"}


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5, 2.5, 3.5, 4.5, 6.0])
def test_a_machine_dies_at_any_time_and_nothing_is_lost(stage, seconds):
    async def fault(stage):
        await asyncio.sleep(seconds)
        stage.world.kill("rollout-1")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


def test_a_lost_machine_is_reported_immediately_and_replaced(stage):
    async def fault(stage):
        await until(lambda: stage.control is not None and stage.control.reports and stage.control.last.round == 1)
        assert stage.control.last.generating == ("rollout-0", "rollout-1")
        stage.world.power_off("rollout-1.1")
        await until(lambda: stage.control.last.suspects)
        assert stage.control.last.suspects[0].machine == "rollout-1"
        assert stage.control.last.generating == ("rollout-0",)
        stage.control.replace("rollout-1")
        await until(lambda: not stage.control.last.suspects)
        await until(lambda: stage.control.last.relay.chain == ("rollout-0", "rollout-1"))
        await until(lambda: stage.control.last.generating == ("rollout-0", "rollout-1"))

    stage.job = job(rounds=8)
    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage, rounds=8)


def test_all_machines_die_and_come_back(stage):
    async def fault(stage):
        await asyncio.sleep(1.0)
        stage.world.power_off("rollout-0.1")
        stage.world.power_off("rollout-1.1")
        await asyncio.sleep(60)
        stage.control.replace("rollout-0")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


def test_a_hung_machine_is_lost_by_its_heartbeat(stage):
    async def fault(stage):
        await asyncio.sleep(1.0)
        machine = stage.world.machine("rollout-1")
        machine.condition.begin(FaultKind.FROZEN)
        machine.refresh()

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert any(suspect.machine == "rollout-1" for report in stage.control.reports for suspect in report.suspects)


@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
def test_the_trainer_dies_at_any_time_and_the_store_follows_its_checkpoint(stage, seconds):
    async def fault(stage):
        await asyncio.sleep(seconds)
        stage.world.kill("trainer")

    stage.job = job(rounds=4)
    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage, rounds=4)
    assert stage.control.last.weight_version >= 5


def test_versions_of_an_undone_history_are_not_used_again(stage):
    async def fault(stage):
        await until(lambda: stage.rounds == [1, 2, 3])
        stage.world.kill("trainer")

    stage.job = job(rounds=5, every_rounds=10)
    stage.play(fault)
    assert stage.rounds == [1, 2, 3, 1, 2, 3, 4, 5]
    check_trained_once(stage, rounds=5)
    store = Store(stage.path, "uid-1")
    history = store.versions.used().history
    store.close()
    assert [entry.version for entry in history] == sorted({entry.version for entry in history})
    assert [entry.step for entry in history if entry.abandoned]


def test_a_failed_reward_is_no_zero_and_is_tried_again(stage):
    stage.fails = {"0.1": 2}
    stage.play()
    check_trained_once(stage)
    assert stage.control.last.totals.aborted_samples == 2
    assert stage.control.last.totals.filtered_groups == 0


def test_a_group_whose_reward_keeps_failing_is_filtered_with_its_reason(stage):
    stage.fails = {"0.1": 1000}
    stage.play()
    ids = stage.trained_ids()
    assert len(ids) == 16
    assert not [key for key in ids if key.startswith("0.1.")]
    assert stage.control.last.totals.filtered_groups == 1
    store = Store(stage.path, "uid-1")
    assert store.trajectories.outcomes() == {"trained": 16, "discarded": 2}
    store.close()


def test_rewards_that_never_come_fail_the_job(stage):
    stage.fails = {f"0.{index}": 1000 for index in range(100)}
    finished = stage.play()
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "RewardsKeepFailing")


def test_a_round_without_a_group_draws_again(stage):
    stage.fails = {f"0.{index}": 1000 for index in range(3)}
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert stage.trained_ids()[0].startswith("0.3.")


def test_what_is_told_of_a_target_that_was_applied(stage):
    """Its revision, and the boundary since which it is in force."""

    async def scale(stage):
        await until(lambda: len(stage.rounds) == 2)
        stage.control.scale(3)

    stage.job = job(rounds=6)
    assert stage.play(scale).outcome is FinishedOutcome.COMPLETE
    told = [(one.applied, one.applied_round) for one in stage.control.reports if one.applied is not None]
    first, second = dict.fromkeys(told)
    assert first == (1, 0)
    assert second[0] == 2
    assert 2 <= second[1] <= 4


def test_machines_join_and_leave_while_it_runs(stage):
    async def scale(stage):
        await until(lambda: bool(stage.rounds))
        stage.control.scale(3)
        await until(lambda: stage.control.last.relay.chain == ("rollout-0", "rollout-1", "rollout-2"))
        stage.control.scale(1)
        await until(lambda: stage.control.last.drained == ("rollout-1", "rollout-2"))
        assert stage.control.last.applied == 3
        await until(lambda: stage.control.last.relay.chain == ("rollout-0",))

    stage.job = job(rounds=10)
    assert stage.play(scale).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage, rounds=10)
    assert not any(report.suspects for report in stage.control.reports)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 2.5, 3.0, 4.0])
def test_suspend_and_resume_with_all_pods_gone_in_between(stage, seconds):
    async def operator(stage):
        await asyncio.sleep(seconds)
        stage.control.set_phase(TargetPhase.SUSPEND)
        await until(lambda: stage.control.reports and stage.control.last.stage == "Suspended")
        assert stage.control.last.drained == ("rollout-0", "rollout-1")
        before = stage.control.last.round
        for name in ("trainer", "rollout-0", "rollout-1"):
            stage.world.kill(name)
        await asyncio.sleep(100)
        stage.control.replace("trainer-0")
        stage.control.replace("rollout-0")
        stage.control.replace("rollout-1")
        stage.control.set_phase(TargetPhase.RUN)
        await until(lambda: stage.control.last.stage != "Suspended")
        assert stage.control.last.round == before

    stage.job = job(rounds=4, every_rounds=100)
    assert stage.play(operator).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage, rounds=4)


def test_a_full_disk_at_a_checkpoint_is_a_problem_and_not_the_end(stage):
    async def disk(stage):
        stage.world.disk.full = True
        await until(lambda: stage.rounds == [1, 2, 3, 4])
        assert [problem.reason for problem in stage.control.last.warnings] == ["CheckpointFailed"]
        assert "no space left" in stage.control.last.warnings[0].message
        stage.world.disk.full = False

    stage.job = job(rounds=6)
    assert stage.play(disk).outcome is FinishedOutcome.COMPLETE
    assert not stage.control.last.warnings


def test_a_final_model_that_cannot_be_written_is_waited_with_and_not_lost(stage):
    told = {}

    async def disk(stage):
        await until(lambda: stage.rounds == [1, 2])
        stage.world.disk.full = True
        await until(lambda: "ExportFailed" in [problem.reason for problem in stage.control.last.warnings])
        await asyncio.sleep(1000)
        assert stage.control.last.stage != "Finished"
        told.update({problem.reason: problem.message for problem in stage.control.last.warnings})
        stage.world.disk.full = False

    assert stage.play(disk).outcome is FinishedOutcome.COMPLETE
    assert told["ExportFailed"].startswith("the final model cannot be written: no space left")
    assert "ExportFailed" not in [problem.reason for problem in stage.control.last.warnings]
    check_trained_once(stage)


def test_training_goes_on_without_the_api_server(stage):
    async def outage(stage):
        await until(lambda: bool(stage.rounds))
        stage.control.unreachable = True
        await until(lambda: stage.rounds == [1, 2, 3])
        stage.control.unreachable = False

    assert stage.play(outage).outcome is FinishedOutcome.COMPLETE
    assert stage.control.last.finished is not None


@pytest.mark.parametrize("lost", ["trainer", "rollout-0"])
def test_a_running_round_ends_though_fewer_rounds_are_requested(stage, lost):
    """Its prompts have a place then, and trainer and store one step."""

    async def edit(stage):
        await until(lambda: stage.rounds == [1, 2])
        await asyncio.sleep(0.5)
        stage.control.set_rounds(2)
        await asyncio.sleep(0.2)
        stage.world.kill(lost)

    stage.job = job(rounds=4, every_rounds=2)
    assert stage.play(edit).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3]
    check_trained_once(stage, rounds=3)


def test_rounds_requested_while_the_export_waits_for_space_run(stage):
    async def disk(stage):
        stage.world.disk.full = True
        await until(lambda: bool(stage.rounds))
        await until(lambda: "ExportFailed" in [problem.reason for problem in stage.control.last.warnings])
        stage.control.set_rounds(5)
        await asyncio.sleep(30)
        stage.world.disk.full = False

    assert stage.play(disk).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3, 4, 5]
    check_trained_once(stage, rounds=5)


def test_a_job_longer_than_its_data_goes_on_into_the_next_epoch(tmp_path):
    stage = Stage(tmp_path / "state.db", prompts=SimulatedPrompts(size=4))
    stage.play()
    check_trained_once(stage)
    assert stage.trained_ids()[-1].startswith("2.")


@pytest.mark.parametrize("edited", [1, 5])
def test_an_edit_of_the_rounds_holds_from_the_next_boundary(stage, edited):
    async def edit(stage):
        await until(lambda: stage.rounds == [1, 2])
        stage.control.set_rounds(edited)

    assert stage.play(edit).outcome is FinishedOutcome.COMPLETE
    # The edit may come when the third round is under way already.
    assert stage.rounds in ([[1, 2, 3, 4, 5]] if edited == 5 else [[1, 2], [1, 2, 3]])
    assert stage.control.last.rounds == edited
    check_trained_once(stage, rounds=stage.rounds[-1])
