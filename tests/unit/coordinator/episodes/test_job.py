"""Jobs whose responses are episodes: what engines emitted is trained on once, and no failure of ours is a zero."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.audit.lineage import audit_episodes
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.evaluation import responses
from rljob_runtime.simulator.core.events import Generated, Loaded, Submitted
from rljob_runtime.simulator.invariants.episodes import response_of
from rljob_runtime.simulator.peers.harness import Fault, HarnessScript
from tests.support.crashes import CrashAt
from tests.support.episode_job import EpisodeStage
from tests.support.rows import slow
from tests.support.simulated_job import job, until

MODES = [Mode.ON_POLICY, Mode.ASYNCHRONOUS]


def stage_of(path: Path, mode: Mode, script: HarnessScript | None = None, **more: Any) -> EpisodeStage:
    return EpisodeStage(
        path / "state.db",
        job=job(rounds=4, prompts=3, responses=3, mode=mode),
        script=script or HarnessScript(),
        **more,
    )


def complete(stage: EpisodeStage, *meanwhile: Callable[[EpisodeStage], Awaitable[None]]) -> None:
    """Play the job; it must train on each of its responses."""
    finished = stage.play(*meanwhile)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) == 4 * 3 * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_job_of_episodes_trains_on_what_engines_emitted(tmp_path, mode):
    stage = stage_of(tmp_path, mode)
    complete(stage)
    totals = stage.totals()
    assert totals.turns > totals.attempts > 0
    assert stage.invariants.episodes.trained_turns >= 4 * 3 * 3
    assert totals.ends[EndState.COMPLETED] >= 4 * 3 * 3
    assert not totals.aborts.keys() - {AbortCause.NOT_NEEDED}
    rewards = {scored.reward for group in stage.trained for scored in group.responses}
    assert rewards == {0.0, 1.0}, "the environment's"


def test_complete_groups_are_trained_on_while_other_episodes_run(tmp_path):
    """A trainer that computes during generation has less left at the end, and the update is the same."""
    stream = {"enabled": True, "minCompleted": 0, "maxCompleted": 0}
    script = HarnessScript(turns=6, tool_seconds=4.0)
    for streams in (True, False):
        made = job(rounds=4, prompts=3, responses=3, streamTraining={**stream, "enabled": streams})
        stage = EpisodeStage(tmp_path / f"{streams}.db", job=made, script=script)
        complete(stage)
        assert (sum(report.early_groups for report in stage.closed) > 0) == streams
        assert all(report.loaned_machines == 0 for report in stage.closed)


FAULTS = ((Fault.CRASH, 120), (Fault.FAILURE, 120), (Fault.REWRITE, 150), (Fault.REPEAT, 150), (Fault.SILENT, 120))


@pytest.mark.parametrize("mode", MODES)
def test_failures_of_ours_are_aborted_attempts_and_never_a_reward(tmp_path, mode):
    stage = stage_of(tmp_path, mode, HarnessScript(faults=FAULTS, seed=1))
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    # A group whose attempts keep failing is filtered, and no response is trained on twice.
    assert 30 <= len(stage.trained_ids()) == len(set(stage.trained_ids())) <= 36
    totals, seen = stage.totals(), stage.runners.counts
    assert all(seen[fault] for fault, _ in FAULTS), seen
    assert totals.aborts[AbortCause.ENVIRONMENT] == seen[Fault.CRASH]
    assert totals.aborts[AbortCause.TOOL_SERVER] == seen[Fault.FAILURE]
    assert totals.aborts[AbortCause.NO_TURN] == seen[Fault.SILENT]
    assert totals.forks >= 1
    assert totals.retries >= 1


def test_a_round_counts_the_failures_before_its_coordinator_was_replaced(tmp_path):
    shape = job(rounds=1, prompts=6, responses=4)
    script = HarnessScript(turns=4, faults=((Fault.FAILURE, 300),), seed=1)
    stage = EpisodeStage(tmp_path / "state.db", job=shape, script=script)
    stage.play_through([260])
    with closing(sqlite3.connect(stage.path)) as db:
        ((failures,),) = db.execute("SELECT SUM(failures) FROM trajectories")
    assert stage.closed[0].aborted_samples == failures > 6


@pytest.mark.parametrize("mode", MODES)
def test_handed_back_episodes_run_again_and_none_has_failed(tmp_path, mode):
    """Two failures would filter a group, and more than two attempts of a response are handed back."""
    stage = stage_of(tmp_path, mode, HarnessScript(faults=((Fault.LEAVES, 500),), seed=2))
    complete(stage)
    left = stage.runners.counts[Fault.LEAVES]
    # The script of this seed draws 43 for the 36 responses.
    assert stage.totals().aborts[AbortCause.RUNNER_LEFT] == left > 36
    assert stage.control is not None
    totals = stage.control.last.totals
    assert totals is not None
    assert (totals.filtered_groups, totals.environment_failed_groups) == (0, 0)
    with closing(sqlite3.connect(stage.path)) as db:
        assert audit_episodes(db, mode is Mode.ASYNCHRONOUS).findings == ()


def test_a_job_whose_runners_always_leave_ends(tmp_path):
    finished = stage_of(tmp_path, Mode.ON_POLICY, HarnessScript(faults=((Fault.LEAVES, 1000),))).play()
    assert finished is not None
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "EnvironmentsKeepFailing")


@pytest.mark.parametrize("mode", MODES)
def test_groups_of_failing_environments_are_filtered_as_such(tmp_path, mode):
    """Neither a reward has failed, nor is any reward of an attempt that failed used."""
    stage = stage_of(tmp_path, mode, HarnessScript(faults=((Fault.FAILURE, 400),), seed=1))
    stage.play()
    assert stage.control is not None
    totals = stage.control.last.totals
    assert totals is not None
    assert totals.environment_failed_groups == totals.filtered_groups > 0
    assert totals.unscored_groups == 0
    assert (
        stage.totals().aborts[AbortCause.TOOL_SERVER] == stage.runners.counts[Fault.FAILURE] == totals.aborted_samples
    )
    with closing(sqlite3.connect(stage.path)) as db:
        assert audit_episodes(db, mode is Mode.ASYNCHRONOUS).findings == ()


@pytest.mark.parametrize("mode", MODES)
def test_a_job_whose_environments_always_fail_ends_for_that_reason(tmp_path, mode):
    finished = stage_of(tmp_path, mode, HarnessScript(faults=((Fault.FAILURE, 1000),))).play()
    assert finished is not None
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "EnvironmentsKeepFailing")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("machine", ["rollout-0", "rollout-1"])
def test_an_episode_outlives_its_engine(tmp_path, mode, machine):
    """Turns that were stored are kept, and the open ones go on at another machine."""
    stage = stage_of(tmp_path, mode, HarnessScript(turns=6, tool_seconds=2.0))

    async def kill(stage: EpisodeStage) -> None:
        await until(lambda: bool(stage.books) and stage.totals().turns > 10)
        stage.world.kill(machine)

    complete(stage, kill)
    assert not stage.totals().aborts.keys() - {AbortCause.NOT_NEEDED}
    assert stage.runners.counts["tool calls"] == sum(stage.script.turns_of(key) for key in stage.runners.played), (
        "no tool is called twice"
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [3, 17, 40])
def test_an_episode_outlives_the_coordinator(tmp_path, mode, after):
    stage = stage_of(tmp_path, mode, HarnessScript(turns=6, tool_seconds=1.0))
    finished = stage.play_through([after])
    assert finished is not None
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) == 4 * 3 * 3
    assert len(stage.books) == 2
    assert not stage.totals().aborts.keys() - {AbortCause.NOT_NEEDED}
    assert stage.runners.counts["tool calls"] == sum(stage.script.turns_of(key) for key in stage.runners.played), (
        "no tool is called twice"
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [0, 26, *slow(*(seed for seed in range(40) if seed not in (0, 26)))])
def test_nothing_is_lost_or_trained_on_twice_whatever_fails(tmp_path, mode, seed):
    """Engines, coordinators and environments fail in one job."""
    drawn = random.Random(seed)
    script = HarnessScript(drawn.randint(1, 6), tool_seconds=drawn.choice([0.0, 0.5, 4.0]), faults=FAULTS, seed=seed)
    stage = stage_of(tmp_path, mode, script, seed=seed)
    crashes = [drawn.randint(1, 120) for _ in range(drawn.randint(0, 3))]

    async def kill(stage: EpisodeStage) -> None:
        for _ in range(drawn.randint(0, 3)):
            await asyncio.sleep(drawn.uniform(0.5, 20.0))
            stage.world.kill(f"rollout-{drawn.randrange(2)}")

    finished = stage.play_through(crashes, kill)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) > 0
    assert {scored.reward for group in stage.trained for scored in group.responses} <= {0.0, 1.0}


def test_a_replica_is_not_lost_while_its_episodes_wait_for_tools(tmp_path, caplog):
    """No token comes for longer than a replica may be silent."""
    stage = stage_of(tmp_path, Mode.ON_POLICY, HarnessScript(turns=2, tool_seconds=150.0), seconds=3_000.0)
    complete(stage)
    assert Settings.of(stage.job).stall < 150.0
    assert not stage.totals().aborts.keys() - {AbortCause.NOT_NEEDED}
    assert not [record for record in caplog.records if "lost" in record.getMessage()]
    assert stage.totals().attempts == stage.totals().ends[EndState.COMPLETED], "no attempt moved or began again"


@pytest.mark.parametrize("mode", MODES)
def test_evaluations_are_episodes_too(tmp_path, mode):
    evaluation = [{"name": "check", "everyRounds": 2, "maxPrompts": 3, "responsesPerPrompt": 2}]
    made = job(rounds=4, prompts=3, responses=3, mode=mode, evaluation=evaluation)
    stage = EpisodeStage(tmp_path / "state.db", job=made, script=HarnessScript(faults=((Fault.CRASH, 100),), seed=1))
    complete(stage)
    assert [one.round for one in stage.evaluated] == [0, 2, 4]
    assert {one.average for one in stage.evaluated} != {None}
    assert not stage.book.numbers(), "what has ended is forgotten"


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_generates_what_a_failure_of_ours_ended_again(tmp_path, mode):
    evaluation = [{"name": "check", "everyRounds": 4, "maxPrompts": 6, "responsesPerPrompt": 3}]
    made = job(rounds=4, prompts=3, responses=3, mode=mode, evaluation=evaluation)
    script = HarnessScript(turns=1, faults=((Fault.FAILURE, 150),))
    for step in (0, 4):
        assert any(script.fault_of(key, 1) for key in responses("check", step, range(6), 3)), "first attempts fail"
    stage = EpisodeStage(tmp_path / "state.db", job=made, script=script)
    stage.play()
    assert [(one.round, one.failed) for one in stage.evaluated] == [(0, 0), (4, 0)]


@pytest.mark.parametrize("mode", MODES)
def test_updates_that_a_lost_trainer_undid_are_trained_on_again(tmp_path, mode):
    stage = stage_of(tmp_path, mode)

    async def kill(stage: EpisodeStage) -> None:
        await until(lambda: len(stage.closed) == 3)
        stage.world.kill("trainer")

    finished = stage.play(kill)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert stage.rounds.count(3) == 2, "it was done again"
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) == 4 * 3 * 3


# --- repack ---


def tailed(tmp_path: Path, mode: Mode = Mode.ASYNCHRONOUS, **more: Any) -> EpisodeStage:
    """Four machines, and episodes of 1 to 30 turns."""
    made = job(rounds=5, prompts=6, responses=2, machines=4, mode=mode, repack={"intervalSeconds": 0.5, **more})
    script = HarnessScript(turns=30, tool_seconds=0.5, turn_tokens=30, seed=3)
    return EpisodeStage(tmp_path / "state.db", job=made, machines=4, script=script, limits=Limits(tokens=2_000))


def check_moved(stage: EpisodeStage) -> None:
    """Check that each response is trained on once, and that a move cost neither an attempt, a turn nor a call."""
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) == 5 * 6 * 2
    totals = stage.totals()
    assert not totals.aborts.keys() - {AbortCause.NOT_NEEDED}
    assert stage.runners.counts["tool calls"] == sum(stage.script.turns_of(key) for key in stage.runners.played)
    with closing(sqlite3.connect(stage.path)) as db:
        assert audit_episodes(db, True).findings == ()


def test_the_last_long_episodes_move_together_with_an_open_turn_or_without(tmp_path):
    stage = tailed(tmp_path)
    submitted: list[Submitted] = []
    stage.watchers.append(lambda event: submitted.append(event) if isinstance(event, Submitted) else None)
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    check_moved(stage)
    assert sum(report.repacks or 0 for report in stage.closed) > 3
    moved = sum(report.moved_responses or 0 for report in stage.closed)
    replicas: defaultdict[TrajectoryKey, list[str]] = defaultdict(list)
    """By turn: where it was submitted."""
    for event in submitted:
        replicas[event.key].append(event.replica)
    with_turn = [places for places in replicas.values() if len(places) > 1]
    assert all(len(places) == len(set(places)) for places in with_turn), "no turn begins twice at one replica"
    assert 0 < len(with_turn) < moved, "most episodes wait for a tool when they move"
    assert any(event.prefix for event in submitted), "an open turn goes on from its tokens"


@dataclass(frozen=True)
class Moved:
    """A move: its source and the responses."""

    source: str
    keys: frozenset[TrajectoryKey]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The moves, as they begin."""
    seen: list[Any] = []
    relaunch = GroupTracker.relaunch

    def watched(groups: GroupTracker, source: str, destination: str) -> Any:
        ended, moved = relaunch(groups, source, destination)
        seen.append(Moved(source, frozenset(one.key for one in moved)))
        return ended, moved

    monkeypatch.setattr(GroupTracker, "relaunch", watched)
    return seen


def test_released_replicas_load_newer_weights_while_moved_turns_run(tmp_path, moves):
    stage = tailed(tmp_path)
    stage.watchers.append(lambda event: moves.append(event) if isinstance(event, Generated | Loaded) else None)
    stage.play()
    check_moved(stage)
    fresh = 0
    for at, moved in enumerate(moves):
        if isinstance(moved, Moved):
            later = moves[at:]
            turns = [
                place
                for place, one in enumerate(later)
                if isinstance(one, Generated) and response_of(one.key) in moved.keys
            ]
            fresh += any(isinstance(one, Loaded) and one.replica == moved.source for one in later[: max(turns)])
    assert fresh > 0


@pytest.mark.parametrize("victim", slow(0, 1, 2, 3))
def test_a_machine_that_dies_after_a_move_costs_no_turn(tmp_path, moves, victim):
    stage = tailed(tmp_path)

    async def kill(stage: EpisodeStage) -> None:
        await until(lambda: bool(moves), tick=0.001)
        stage.world.kill(f"rollout-{victim}")

    finished = stage.play(kill)
    assert finished is not None
    check_moved(stage)


@pytest.mark.parametrize("after", [1, *slow(2, 3, 4, 8, 16)])
def test_a_coordinator_that_dies_after_a_move_costs_no_turn(tmp_path, moves, after):
    """It dies around the transactions that follow: the leases of the destination, then tokens."""
    stage = tailed(tmp_path)
    finished = stage.play_through([CrashAt(after, lambda: bool(moves))])
    assert finished is not None
    assert len(stage.books) == 2
    check_moved(stage)
