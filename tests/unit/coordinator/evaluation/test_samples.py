"""What evaluations answered is kept as text: chosen with the result, in one file each, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.resources import Samples
from rljob_api.spec.training import Mode
from rljob_api.status import RoundReport
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.evaluation.work import EvaluationInProgress
from rljob_runtime.coordinator.samples.writer import SampleWriter
from rljob_runtime.coordinator.store.evaluations import EvaluatedSample, OpenEvaluation
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.kept_samples import ROUNDS_DUE, SampleRules
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, PromptKey, Response, TrajectoryKey
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder, SampleOutcome
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.scheduling.round_plan import REWARD_FAILED
from tests.support.crashes import play_through
from tests.support.simulated_job import Stage, job

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)
MODES = pytest.mark.parametrize("mode", list(Mode))
CHECK = {"name": "check", "everyRounds": 2, "responsesPerPrompt": 2, "maxPrompts": 3}


class Texts:
    """Prompts and texts by their numbers."""

    async def prompt_tokens(self, keys: Sequence[PromptKey]) -> list[int]:
        return [1 for _ in keys]

    async def read_texts(self, work: Callable[[Texts], Any]) -> Any:
        return work(self)

    def messages(self, key: PromptKey) -> Sequence[dict[str, str]]:
        return [{"role": "user", "content": f"question {key.index} of {key.evaluation}"}]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


class Access:
    """`StoreAccess` in this thread."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def do(self, work: Any) -> Any:
        return work(self.store)


def opened(folder: Path, per_round: int | None = None) -> Store:
    store = Store(folder / "state.db", "uid-1")
    if store.boundaries.newest() is None:
        store.start_at(Boundary(0, Cursor()))
    store.samples.use(SampleRules(per_round, 7, lambda rewards: list(rewards)))
    return store


def write(folder: Path, store: Store, keep: int = 5) -> None:
    """Write all files that wait, as a new coordinator does."""

    async def present() -> Samples:
        return Samples(keep_rounds=keep)

    async def program() -> None:
        writer = SampleWriter(folder, Access(store), 7, lambda rewards: list(rewards), present)
        await writer.use(Samples(keep_rounds=keep))
        writer.use_prompts(Texts())
        await writer.close()
        assert writer.problem() is None

    asyncio.run(program())


def evaluate(store: Store, step: int, rewards: Sequence[float | None], name: str = "check") -> None:
    """Evaluate the weights after `step`: one response to each prompt. None: its reward fails."""
    store.evaluations.open(step, {name: "digest"})
    for index, reward in enumerate(rewards):
        key = TrajectoryKey(evaluation_key(name, step, index), 0)
        response = Response(key, 3, 5, (step, index), (-1.0, -1.0), FinishReason.STOP, "rollout-0.0")
        reason = REWARD_FAILED if reward is None else None
        terms = {} if reward is None else {"right": reward}
        sample = EvaluatedSample(index, 0, 2, "stop", reward, terms, reason)
        store.evaluations.record(step, name, sample, response, "rule right:\n no answer" if reward is None else "")
    assert store.evaluations.close(step, name, EvaluationResult(name, step, 5, len(rewards), 1).to_json())


def test_a_file_has_what_was_answered_with_its_score(tmp_path: Path) -> None:
    store = opened(tmp_path)
    evaluate(store, 2, [0.5, None])
    write(tmp_path, store)
    right, failed = EvaluationSampleFolder(tmp_path, "check").read(2)
    assert right == Sample(
        round=2,
        prompt_id="evaluation:check/2.0",
        sample=0,
        attempt=3,
        outcome=SampleOutcome.EVALUATED,
        prompt=({"role": "user", "content": "question 0 of check"},),
        response="2 0",
        tokens=2,
        finish="stop",
        reward=0.5,
        rewards={"right": 0.5},
        weight_versions=(5,),
        replica="rollout-0.0",
    )
    assert (failed.outcome, failed.reason, failed.reward) == (SampleOutcome.FAILED, REWARD_FAILED, None)
    assert failed.cause == "rule right: no answer"
    assert SampleFolder(tmp_path).rounds() == []
    assert store.evaluations.samples.due() == []
    store.close()


def test_best_worst_and_the_same_prompts_each_time_are_kept(tmp_path: Path) -> None:
    """Among equal rewards the lot decides, and it does not depend on the weights."""
    store = opened(tmp_path, per_round=4)
    evaluate(store, 0, [0.0] * 9 + [1.0] + [0.0] * 30)
    evaluate(store, 2, [0.0] * 9 + [1.0] + [0.0] * 30)
    write(tmp_path, store)
    first, second = ([*EvaluationSampleFolder(tmp_path, "check").read(step)] for step in (0, 2))
    places = [PromptKey.parse(one.prompt_id).index for one in first]
    assert len(first) == 4
    assert 9 in places
    assert [PromptKey.parse(one.prompt_id).index for one in second] == places
    store.close()


def test_the_newest_files_of_each_evaluation_stay(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for step in (0, 50, 100):
        evaluate(store, step, [1.0])
    evaluate(store, 0, [1.0], name="other")
    write(tmp_path, store, keep=2)
    assert EvaluationSampleFolder(tmp_path, "check").rounds() == [50, 100]
    assert EvaluationSampleFolder(tmp_path, "other").rounds() == [0]
    store.close()


def test_samples_survive_a_restart_and_go_with_abandoned_weights(tmp_path: Path) -> None:
    store = opened(tmp_path)
    evaluate(store, 0, [1.0])
    evaluate(store, 2, [1.0])
    store.close()
    store = opened(tmp_path)
    assert store.evaluations.samples.due() == [(0, "check"), (2, "check")]
    store.evaluations.forget_after(0)
    assert store.evaluations.samples.due() == [(0, "check")]
    write(tmp_path, store)
    assert EvaluationSampleFolder(tmp_path, "check").rounds() == [0]
    store.close()


@pytest.mark.parametrize("again", [True, False])
def test_files_of_an_abandoned_history_go_when_training_continues(tmp_path: Path, again: bool) -> None:
    """Also if the evaluation is not due for a long time, or the spec does not name it any more."""
    store = opened(tmp_path)
    for step in (0, 2, 4):
        evaluate(store, step, [1.0])
        evaluate(store, step, [1.0], name="removed")
    write(tmp_path, store)
    store.evaluations.forget_after(2)
    if again:
        evaluate(store, 3, [0.5])
    write(tmp_path, store)
    assert EvaluationSampleFolder(tmp_path, "check").rounds() == ([0, 2, 3] if again else [0, 2])
    assert EvaluationSampleFolder(tmp_path, "removed").rounds() == [0, 2]
    store.close()


async def test_files_of_an_abandoned_history_go_after_a_rewind(tmp_path: Path) -> None:
    """The coordinator has not restarted."""

    async def present() -> Samples:
        return Samples()

    store = opened(tmp_path)
    writer = SampleWriter(tmp_path, Access(store), 7, lambda rewards: list(rewards), present)
    await writer.use(Samples())
    writer.use_prompts(Texts())

    async def after(step: int) -> list[int]:
        writer.round_closed(RoundReport(round=step), TRAINED)
        await writer.close()
        return EvaluationSampleFolder(tmp_path, "check").rounds()

    for step in (1, 2, 3):
        evaluate(store, step, [1.0])
        assert await after(step) == list(range(1, step + 1))
    store.evaluations.forget_after(1)
    assert await after(2) == [1]
    store.close()


@pytest.mark.parametrize("per_round", [0, None])
def test_nothing_is_kept_without_samples_or_while_too_many_files_wait(tmp_path: Path, per_round: int | None) -> None:
    store = opened(tmp_path, per_round)
    for step in range(ROUNDS_DUE + 1):
        evaluate(store, step, [1.0])
    assert len(store.evaluations.samples.due()) == (ROUNDS_DUE if per_round is None else 0)
    store.close()


def test_an_abandoned_evaluation_has_no_samples(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.evaluations.open(2, {"check": "digest"})
    response = Response(TrajectoryKey(evaluation_key("check", 2, 0), 0), 1, 1, (4,), (-1.0,), FinishReason.STOP, "r")
    store.evaluations.record(2, "check", EvaluatedSample(0, 0, 1, "stop", 1.0, {}), response)
    store.evaluations.abandon(2, "check", "the job was interrupted")
    assert store.evaluations.samples.due() == []
    store.close()


def recorded(store: Store, step: int, name: str, count: int) -> list[EvaluatedSample]:
    """Open an evaluation, and record some responses of one token."""
    store.evaluations.open(step, {name: "digest"})
    samples = [EvaluatedSample(index, 0, 1, "stop", float(index), {}) for index in range(count)]
    for one in samples:
        key = TrajectoryKey(evaluation_key(name, step, one.prompt), 0)
        response = Response(key, 1, 1, (4,), (-1.0,), FinishReason.STOP, "r")
        store.evaluations.record(step, name, one, response)
    return samples


@pytest.mark.parametrize(("step", "due"), [(4, {"check": "digest"}), (2, {"other": "digest"}), (3, {})])
def test_responses_of_an_evaluation_that_is_never_continued_are_deleted(
    tmp_path: Path, step: int, due: dict[str, str]
) -> None:
    """It was interrupted, and is not due any more: its tokens would stay for the life of the job."""
    store = opened(tmp_path)
    recorded(store, 2, "check", 3)
    store.evaluations.open(step, due)
    (again,) = store.evaluations.open(2, {"check": "digest"})
    assert again.samples == ()
    store.close()


def test_samples_are_those_that_the_result_counts(tmp_path: Path) -> None:
    """An edit while the job is suspended asks for fewer prompts."""
    store = opened(tmp_path)
    samples = recorded(store, 2, "check", 3)
    store.evaluations.drop(2, "check", samples[1:])
    assert store.evaluations.close(2, "check", EvaluationResult("check", 2, 5, 1, 1).to_json())
    assert [one.sample.reward for one in store.evaluations.samples.read(2, "check", 0, 9)] == [0.0]
    store.close()


def test_what_an_evaluation_does_not_ask_any_more_is_not_counted() -> None:
    samples = tuple(EvaluatedSample(index % 3, index // 3, 1, "stop", 1.0, {}) for index in range(6))
    settings = replace(Settings.of(job(evaluation=[CHECK])).evaluations[0], responses_per_prompt=1)
    one = EvaluationInProgress.of(settings, OpenEvaluation("check", samples, 0.0), Asks())
    assert one.samples == list(samples[:2])
    assert one.uncounted(OpenEvaluation("check", samples, 0.0)) == list(samples[2:])


class Asks:
    """Prompts of an evaluation that asks two of its records."""

    def evaluation_prompts(self, name: str) -> Sequence[int]:
        return (0, 1)


@MODES
def test_evaluation_samples_keep_all_responses_and_change_no_result(tmp_path: Path, mode: Mode) -> None:
    """Also through crashes: a response is in the samples of its evaluation once, and the results are the same."""
    played: list[Stage] = []
    for name, per_round, crashes in (("none", 0, []), ("all", None, []), ("crashes", None, [11, 23, 37])):
        stage = Stage(tmp_path / f"{name}.db", job(rounds=2, mode=mode, evaluation=[CHECK]))
        stage.on_opening = lambda stage=stage, per_round=per_round: stage.store.samples.use(
            SampleRules(per_round, 7, lambda rewards: list(rewards))
        )
        play_through(stage, crashes)
        played.append(stage)
    plain, whole, crashed = played
    assert [replace(one, times=None) for one in plain.evaluated] == [
        replace(one, times=None) for one in whole.evaluated
    ]
    assert plain.trained_ids() == whole.trained_ids()
    for stage in (whole, crashed):
        store = Store(stage.path, "uid-1")
        assert store.evaluations.samples.due() == [(0, "check"), (2, "check")]
        for step, name in store.evaluations.samples.due():
            found = store.evaluations.samples.read(step, name, 0, 100)
            assert sorted((PromptKey.parse(one.sample.prompt_id).index, one.sample.sample) for one in found) == [
                (prompt, sample) for prompt in range(3) for sample in range(2)
            ]
            assert [len(one.token_ids) for one in found] == [one.sample.tokens for one in found]
        store.close()


def test_a_store_that_was_lost_deletes_no_file(tmp_path: Path) -> None:
    """It has no results, and the files are of weights that training goes on from."""
    store = opened(tmp_path)
    evaluate(store, 2, [1.0])
    write(tmp_path, store)
    store.close()
    (tmp_path / "state.db").unlink()
    store = opened(tmp_path)
    write(tmp_path, store)
    assert EvaluationSampleFolder(tmp_path, "check").rounds() == [2]
    evaluate(store, 6, [1.0])
    write(tmp_path, store)
    assert EvaluationSampleFolder(tmp_path, "check").rounds() == [2, 6]
    store.close()
