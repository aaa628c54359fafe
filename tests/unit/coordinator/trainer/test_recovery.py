"""The store goes with the coordinator's pod, as it does on emptyDir: the job goes on from the trainer's checkpoint, no
number of the lost history is used again, and every prompt has its turn, once."""

import asyncio
import json
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, RoundKind, RuntimeTotals
from rljob_runtime.coordinator.store.connection import ATTEMPTS_A_TERM
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.snapshot import CoordinatorSnapshot, SnapshotError
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.trainer.recovery import NoHistory, reconcile_store_and_trainer, snapshot_at
from rljob_runtime.protocols import TrainerState
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.backoff import MAX_TRAINER_LOSSES
from rljob_runtime.scheduling.round_plan import RoundPlan, RoundRules, RoundShape
from rljob_runtime.scheduling.weight_versions import UNREPORTED, Versions
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Published, StoreLost, Trained
from rljob_runtime.simulator.peers.cluster import TRAINER
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from tests.support.examples import examples
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job

HALF_MORE = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}


class Crash(BaseException):
    """As SIGKILL."""


def crash_after(stage: Stage, rounds: int, moments: int = 0):
    """Around a store call at which so many rounds are closed: the first moment, or so many later."""
    seen = 0

    def at(moment: str) -> None:
        nonlocal seen
        if len(stage.closed) >= rounds:
            seen += 1
            if seen > moments:
                raise Crash

    return at


def lose_everything_but_memory_and_checkpoints(stage: Stage) -> None:
    """Ray's tables go with the store, so every actor ends; the machines' shared memory stays."""
    for name in (TRAINER, "rollout-0", "rollout-1"):
        for process in list(stage.world.machine(name).processes):
            stage.world.kill_process(process)
    lose_the_store(stage)


def lose_the_store(stage: Stage) -> None:
    for file in stage.path.parent.glob("state.db*"):
        file.unlink()
    stage.observe(StoreLost())


def play_and_lose(stage: Stage, rounds: int, moments: int = 0, lose=lose_everything_but_memory_and_checkpoints) -> None:
    """The store is lost after so many rounds; the job is played to its end."""

    async def lives() -> None:
        stage.around = crash_after(stage, rounds, moments)
        with pytest.raises(Crash):
            await stage.coordinate()
        stage.around = lambda moment: None
        lose(stage)
        async with asyncio.timeout(3600):
            assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE

    virtual_time.run(lives())


def check_every_prompt_has_its_turn(stage: Stage, rounds: int, prompts: int, responses: int, size: int) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == rounds * prompts * responses
    trained = {tuple(map(int, name.split(".")[:2])) for name in ids}
    assert sorted(trained) == [divmod(place, size) for place in range(rounds * prompts)]


# --- plain rounds ---


@pytest.mark.parametrize("machines_late", [False, True], ids=["machines immediately", "machines late"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_lost_store_costs_no_more_than_the_checkpoint_says(tmp_path, rounds, machines_late):
    stage = Stage(tmp_path / "state.db", job=job(rounds=5, every_rounds=2))
    published: list[Published] = []
    stage.watchers.append(lambda event: published.append(event) if isinstance(event, Published) else None)
    former = 0

    def lose(stage: Stage) -> None:
        nonlocal former
        lose_everything_but_memory_and_checkpoints(stage)
        for index in range(2 if machines_late else 0):
            asyncio.get_running_loop().call_later(30.0, stage.world.hold_back(f"rollout-{index}").set)
        former = len(published)

    play_and_lose(stage, rounds, lose=lose)
    numbers = [event.version for event in published]
    assert min(numbers[former:]) > max(numbers[:former], default=0)
    checkpoint = rounds // 2 * 2
    assert stage.rounds[rounds:] == list(range(checkpoint + 1, 6))


@given(reported=st.integers(0, 9), since=st.integers(0, UNREPORTED), seen=st.integers(0, 9))
def test_a_history_that_was_lost_begins_above_what_was_reported(reported, since, seen):
    assert Versions().with_reported(reported).with_observed(seen).next_version() > max(reported + since, seen)
    kept = Versions().publish(1, 0)
    assert kept.with_reported(reported) == kept, "a history that is there knows better"


# --- tail batching ---


@pytest.mark.parametrize("lose", [lose_everything_but_memory_and_checkpoints, lose_the_store])
@pytest.mark.parametrize("moments", [0, 6], ids=["before its checkpoint", "in the next round"])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("lost_after", [3, *slow(1, 2, 4, 7, 9)])
def test_the_queue_and_the_cursor_are_in_the_checkpoint(tmp_path, lost_after, every, moments, lose):
    """Epochs of 11 prompts wrap in the third round. The store alone is lost, too: a trainer that lives, and has gone
    on since its checkpoint, begins there again."""
    prompts = SimulatedPrompts(11)
    stage = Stage(
        tmp_path / "state.db",
        job=job(rounds=10, prompts=4, responses=2, every_rounds=every, tail=HALF_MORE),
        prompts=prompts,
    )
    play_and_lose(stage, lost_after, moments, lose)
    check_every_prompt_has_its_turn(stage, 10, 4, 2, prompts.size)
    # A long round without deferred prompts is reported as plain.
    assert {"Short", "Long"} <= {report.kind for report in stage.closed} <= {"Short", "Long", "Plain"}
    written = lost_after if moments else lost_after - 1
    assert stage.rounds[lost_after:] == list(range(written // every * every + 1, 11))
    totals = stage.control.last.totals
    trained, queued = 10 * 4 * 2, sum(report.requeued_prompts or 0 for report in last_of_each_round(stage))
    assert (totals.trained_trajectories, totals.requeued_prompts) == (trained, queued)


def last_of_each_round(stage: Stage):
    return {report.round: report for report in stage.closed}.values()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    every=st.integers(1, 3),
    prompts=st.integers(1, 4),
    factors=st.tuples(st.sampled_from([1.25, 1.5, 2.0]), st.sampled_from([1.0, 1.5])),
    size=st.integers(3, 40),
    seed=st.integers(0, 99),
    lost_after=st.integers(0, 6),
    moments=st.integers(0, 60),
)
def test_whenever_the_store_is_lost_every_prompt_has_its_turn(every, prompts, factors, size, seed, lost_after, moments):
    tail = {"enabled": True, "promptFactor": factors[0], "responseFactor": factors[1]}
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(
            Path(folder) / "state.db",
            job=job(rounds=8, prompts=prompts, every_rounds=every, tail=tail),
            seed=seed,
            prompts=SimulatedPrompts(size),
        )
        play_and_lose(stage, lost_after, moments)
        check_every_prompt_has_its_turn(stage, 8, prompts, 2, size)


def test_a_round_of_prompts_that_waited_tells_nothing_of_the_others(tmp_path):
    """Its lengths are those of long prompts, also when the store has no record that they lost their race."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=4, every_rounds=1, tail=HALF_MORE))
    play_and_lose(stage, 2, moments=6)
    store = Store(stage.path, "uid-1")
    waited, fresh = store.remembered(40).rounds
    store.close()
    assert (waited.report.round, {prompt.queued for prompt in waited.prompts.values()}) == (3, {True})
    assert (fresh.report.round, {prompt.queued for prompt in fresh.prompts.values()}) == (4, {False})


# --- the document ---


@given(
    st.builds(
        CoordinatorSnapshot,
        step=st.integers(0, 99),
        cursor=st.builds(Cursor, st.just(9), st.integers(0, 99)),
        queue=st.lists(st.builds(PromptKey, st.integers(0, 9), st.integers(0, 99)), unique=True).map(tuple),
        totals=st.builds(RuntimeTotals, tokens=st.integers(0, 10**9), requeued_prompts=st.integers(0, 9)),
        anchors=st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers(0, 9999), min_size=1)),
        version=st.integers(0, 99),
    )
)
def test_what_a_checkpoint_keeps_is_what_a_new_history_begins_with(snapshot):
    """From an empty store to the document, and from there to an empty store."""
    document = snapshot.to_json()
    assert CoordinatorSnapshot.from_json(document, snapshot.step) == snapshot
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "state.db", "uid-1")
        begun = reconcile_store_and_trainer(store, found(snapshot.step, document), SimulatedPrompts(), 4)
        assert begun == store.boundaries.newest()
        assert snapshot_at(store, snapshot.step) == snapshot
        assert snapshot_at(store, snapshot.step + 1) is None
        assert store.versions.used().next_version() == snapshot.version + 1
        store.close()


def found(step: int, snapshot: str | None, kept: int | None = None) -> TrainerState:
    return TrainerState(step, None, 1, {}, step if kept is None else kept, snapshot)


WHOLE = {
    "format": 1,
    "step": 3,
    "cursor": {"epoch": 1, "position": 2},
    "longQueue": ["0.4", "1.0"],
    "totals": {"tokens": 7},
    "anchors": {"tests": {"a": 12}},
    "version": 5,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2: Input should be 1"),
        ({"step": 4}, "step is 4: the checkpoint is of step 3"),
        ({"cursor": {"epoch": 1}}, "cursor.position: Field required"),
        ({"cursor": {"epoch": -1, "position": 0}}, "cursor.epoch is -1: Input should be greater than or equal to 0"),
        ({"longQueue": ["0.4", "0-5"]}, "longQueue[1] is '0-5': String should match"),
        ({"longQueue": ["0.4", "0.4"]}, "longQueue[1] is 0.4: it waits already"),
        ({"longQueue": ["2.4"]}, "longQueue[0] is 2.4: the cursor stands in epoch 1"),
        ({"totals": {"tokens": "7"}}, "totals.tokens is '7': Input should be a valid integer"),
        ({"anchors": {"tests": {"a": -1}}}, "anchors.tests.a is -1: Input should be greater"),
        ({"version": True}, "version is true: Input should be a valid integer"),
        ({"queue": []}, "queue is []: Extra inputs are not permitted"),
        (None, "the document: Invalid JSON"),
    ],
)
def test_a_document_that_cannot_be_is_not_used_and_the_log_says_why(tmp_path, caplog, change, message):
    """As a checkpoint that has none: so many prompts a round are taken for drawn."""
    CoordinatorSnapshot.from_json(json.dumps(WHOLE), 3)
    document = json.dumps(WHOLE)[:-1] if change is None else json.dumps({**WHOLE, **change})
    with pytest.raises(SnapshotError) as refused:
        CoordinatorSnapshot.from_json(document, 3)
    assert str(refused.value).startswith(message)
    store = Store(tmp_path / "state.db", "uid-1")
    with caplog.at_level(logging.WARNING, "rljob_runtime"):
        begun = reconcile_store_and_trainer(store, found(3, document), SimulatedPrompts(10), 4)
    assert begun == agree_without(tmp_path) == Boundary(3, Cursor(1, 2))
    assert f"coordinator.json in the checkpoint of step 3 is not used: {message}" in caplog.text
    assert "4 a round are assumed" in caplog.text
    store.close()


def agree_without(folder: Path) -> Boundary:
    """As a checkpoint of before is read."""
    store = Store(folder / "other.db", "uid-1")
    begun = reconcile_store_and_trainer(store, found(3, None), SimulatedPrompts(10), 4)
    store.close()
    return begun


def test_no_attempt_of_a_store_that_was_lost_is_given_again(tmp_path):
    """In either mode, and over restarts of the coordinator that begins from scratch."""
    prompts = (PromptKey(0, 0), PromptKey(0, 1))
    plan = RoundPlan(1, 5, RoundShape(RoundKind.LONG, 2, 3, 2, 3), prompts, RoundRules(2, False, 2))
    keys = {TrajectoryKey(prompt, sample) for prompt in prompts for sample in range(3)}
    for name, term, first in (("first.db", 1, 0), ("third.db", 3, 2 * ATTEMPTS_A_TERM)):
        for mode in Mode:
            store = Store(tmp_path / f"{mode}-{name}", "uid-1")
            assert store.adopt_term(term) == term
            store.versions.publish(5, 0)
            if mode is Mode.ON_POLICY:
                known = {key: saved.attempt for key, saved in store.rounds.open(plan, Cursor(0, 2)).items()}
            else:
                known = store.experience.draw(prompts, Cursor(0, 2), 5, "rollout-0", 3)
            assert known == (dict.fromkeys(keys, first) if first else {})
            store.close()
            store = Store(tmp_path / f"{mode}-{name}", "uid-1")
            assert store.adopt_term(7) == 7
            if mode is Mode.ON_POLICY:
                opened = store.rounds.under_way()
                assert {key: saved.attempt for key, saved in opened.saved.items()} == dict.fromkeys(keys, first)
            else:
                samples = [one for group in store.experience.open_groups() for one in group.samples]
                assert {one.key: one.attempt for one in samples} == dict.fromkeys(keys, first)
            store.close()


def test_a_store_that_is_there_decides(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    there = reconcile_store_and_trainer(store, found(0, None), SimulatedPrompts(10), 4)
    document = CoordinatorSnapshot(0, Cursor(7, 7), (PromptKey(0, 1),)).to_json()
    assert (
        reconcile_store_and_trainer(store, found(0, document), SimulatedPrompts(10), 4)
        == there
        == Boundary(0, Cursor())
    )
    store.close()


def test_a_step_of_unknown_history_is_not_continued(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    with pytest.raises(NoHistory, match="not know step 3, and the newest checkpoint is of step 2"):
        reconcile_store_and_trainer(store, found(3, json.dumps({**WHOLE, "step": 2}), kept=2), SimulatedPrompts(), 4)
    assert store.boundaries.newest() is None
    store.close()


def test_a_trainer_lost_repeatedly_in_one_update_fails_the_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, every_rounds=8))
    lost: list[int] = []

    def end(event: object) -> None:
        if isinstance(event, Trained) and event.step == 2:
            lost.append(event.step)
            assert len(lost) <= MAX_TRAINER_LOSSES + 1, "the job goes on for ever"
            stage.world.kill(TRAINER)

    stage.watchers.append(end)
    finished = stage.play()
    assert finished is not None
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "TrainerKeepsFailing")
    assert len(lost) == MAX_TRAINER_LOSSES + 1
