"""Files of samples: complete after any restart, and no volume holds a round up or ends a job."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_api.spec.resources import Samples
from rljob_api.status import RoundKind, RoundReport
from rljob_runtime.coordinator.samples import writer as writer_module
from rljob_runtime.coordinator.samples.writer import SAMPLES_NOT_WRITTEN, SampleWriter
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response
from rljob_runtime.samples import LengthFolder, SampleFolder
from rljob_runtime.samples.episode import SampleCall
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundShape
from tests.support.small_disk import small_disk
from tests.support.stored_episodes import play_round as play_episode_round

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)


class Texts:
    """Prompts and texts by their numbers. `breaks`: decoding raises. `reads`: tokens decoded in each read."""

    breaks = False

    def __init__(self) -> None:
        self.reads: list[int] = []

    async def prompt_tokens(self, keys: Sequence[PromptKey]) -> list[int]:
        return [10 + key.index for key in keys]

    async def read_texts(self, work):
        self.reads.append(0)
        return work(self)

    def messages(self, key: PromptKey) -> Sequence[dict[str, str]]:
        return [{"role": "user", "content": f"question {key.index}"}]

    def decode(self, token_ids: Sequence[int]) -> str:
        self.reads[-1] += len(token_ids)
        if self.breaks:
            raise ValueError("no such token")
        return " ".join(map(str, token_ids))


class Access:
    """`StoreAccess` in this thread."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def do(self, work):
        return work(self.store)


def opened(folder: Path) -> Store:
    store = Store(folder / "state.db", "uid-1")
    if store.boundaries.newest() is None:
        store.start_at(Boundary(0, Cursor()))
        store.versions.publish(1, 0)
    return store


def writer_of(folder: Path, store: Store, spec: Samples) -> SampleWriter:
    async def present() -> Samples:
        return spec

    return SampleWriter(folder, Access(store), 7, lambda rewards: [0.0 for _ in rewards], present)


def play_round(store: Store, step: int, prompts: int = 1) -> None:
    """Two responses to each prompt are trained on."""
    keys = tuple(PromptKey(step, index) for index in range(prompts))
    plan = RoundPlan(step, 1, RoundShape(RoundKind.PLAIN, prompts, 2, prompts, 2), keys)
    store.rounds.open(plan, Cursor(step, prompts))
    places = plan.trajectories()
    store.trajectories.launched(step, 1, [(key, Lease("rollout-0", 1)) for key in places])
    ended = [Response(key, 1, 1, (1, key.sample), (-1.0, -1.0), FinishReason.STOP, "rollout-0") for key in places]
    store.trajectories.finish(step, [Tokens(one.key, 0, one.token_ids, one.logprobs) for one in ended], ended)
    for key in places:
        store.trajectories.score(step, key, Reward(float(key.sample), {"right": float(key.sample)}))
    store.trajectories.assign(step, places)
    outcome = RoundOutcome(keys, dict.fromkeys(keys, PromptOutcome.TRAINED), {}, places)
    store.rounds.close(outcome, Boundary(step, Cursor(step, prompts), report=RoundReport(round=step)))


def close(writer: SampleWriter, number: int):
    return writer.round_closed(RoundReport(round=number), TRAINED)


async def written(folder: Path, number: int) -> list[str]:
    async with asyncio.timeout(20):
        while number not in SampleFolder(folder).rounds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [one.response for one in SampleFolder(folder).read(number)]


async def test_rounds_are_written_while_others_run_and_settings_may_change(tmp_path):
    store = opened(tmp_path)
    settings = Samples(per_round=1, keep_rounds=2)
    writer = writer_of(tmp_path, store, settings)

    async def present() -> Samples:
        return settings

    writer._spec = present
    await writer.use(settings)
    play_round(store, 1)
    task = asyncio.create_task(writer.run())
    close(writer, 1)
    await asyncio.sleep(0.05)
    assert SampleFolder(tmp_path).rounds() == [], "no tokenizer yet"
    writer.use_prompts(Texts())
    assert await written(tmp_path, 1) == ["1 1"], "the best"
    settings = Samples(per_round="All", keep_rounds=2)
    for step in (2, 3, 4):
        play_round(store, step)
        close(writer, step)
        await written(tmp_path, step)
        await asyncio.sleep(0.05)
    assert await written(tmp_path, 4) == ["1 0", "1 1"]
    assert SampleFolder(tmp_path).rounds() == [3, 4]
    (one, other) = SampleFolder(tmp_path).read(4)
    assert one.prompt == ({"role": "user", "content": "question 0"},)
    assert (other.reward, other.rewards) == (1.0, {"right": 1.0})
    assert store.samples.due() == ()
    assert writer.problem() is None
    task.cancel()
    store.close()


async def test_a_restarted_coordinator_writes_what_the_former_one_left(tmp_path):
    store = opened(tmp_path)
    await writer_of(tmp_path, store, Samples()).use(Samples(per_round="All"))
    play_round(store, 1, prompts=70)
    store.close()
    store = opened(tmp_path)
    writer, prompts = writer_of(tmp_path, store, Samples()), Texts()
    await writer.use(Samples())
    writer.use_prompts(prompts)
    await writer.close()
    texts = [one.response for one in SampleFolder(tmp_path).read(1)]
    assert texts == ["1 0", "1 1"] * 70, "more than one call to the store brings"
    assert prompts.reads == [128, 128, 24], "each call's texts are read together"
    assert store.samples.due() == ()
    store.close()


@pytest.mark.parametrize(
    ("most", "reads"), [(4, [4] * 35), (5, [4] * 35), (1, [2] * 70)], ids=["exact", "below", "one alone"]
)
async def test_long_responses_leave_the_thread_of_texts_to_others_in_between(tmp_path, monkeypatch, most, reads):
    monkeypatch.setattr(writer_module, "READ_BATCH", 1000)
    monkeypatch.setattr(writer_module, "DECODED_BATCH", most)
    store, prompts = opened(tmp_path), Texts()
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples(per_round="All"))
    writer.use_prompts(prompts)
    play_round(store, 1, prompts=35)
    await writer.close()
    assert prompts.reads == reads
    assert [one.response for one in SampleFolder(tmp_path).read(1)] == ["1 0", "1 1"] * 35
    store.close()


@pytest.mark.parametrize("fault", ["folder", "text"])
async def test_what_cannot_be_written_costs_its_samples_and_a_warning(tmp_path, fault):
    store, texts = opened(tmp_path), Texts()
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples())
    writer.use_prompts(texts)
    texts.breaks = fault == "text"
    if fault == "folder":
        (tmp_path / "samples").write_text("in the way")
    play_round(store, 1)
    await writer.close()
    warning = close(writer, 1)
    assert warning is not None
    assert warning.reason == SAMPLES_NOT_WRITTEN
    assert warning.message.startswith("1 files of samples could not be written (")
    assert warning.message.endswith("Training continues. Check that "
                                    f"{tmp_path / 'samples'} can be written to and has space.")  # fmt: skip
    assert store.samples.due() == (), "no space is taken for it"
    texts.breaks = False
    (tmp_path / "samples").unlink(missing_ok=True)
    play_round(store, 2)
    await writer.close()
    assert writer.problem() is None
    assert SampleFolder(tmp_path).rounds() == [2]
    store.close()


async def test_a_full_disk_costs_the_samples_of_its_rounds_and_nothing_else(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        store, folder = opened(tmp_path), SampleFolder(disk.folder)
        writer = writer_of(disk.folder, store, Samples())
        await writer.use(Samples())
        writer.use_prompts(Texts())
        for number, has_room in ((1, True), (2, False), (3, True)):
            if not has_room:
                disk.fill()
            play_round(store, number)
            close(writer, number)
            await writer.close()
            if not has_room:
                warning = writer.problem()
                disk.make_room()
        assert warning.reason == SAMPLES_NOT_WRITTEN
        assert "1 files of samples could not be written ([Errno 28] No space left on device" in warning.message
        assert writer.problem() is None
        assert folder.rounds() == [1, 3]
        assert {len(list(folder.read(number))) for number in (1, 3)} == {2}
        assert not list(folder.path.glob("*.new"))
        assert LengthFolder(disk.folder).rounds() == [1, 2, 3], "lengths are written later"
        store.close()


async def test_a_volume_that_does_not_answer_delays_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "ROUNDS_DUE", 2)
    store, answers = opened(tmp_path), threading.Event()
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples())
    writer.use_prompts(Texts())
    monkeypatch.setattr(SampleFolder, "write", lambda *given: answers.wait(30))
    task = asyncio.create_task(writer.run())
    told = []
    for step in range(1, 5):
        play_round(store, step)
        told.append(close(writer, step))
        await asyncio.sleep(0.05)
    assert told[:2] == [None, None]
    assert told[3] is not None
    assert told[3].message.startswith("the samples of 2 rounds were not kept: the volume does not answer")
    began = asyncio.get_running_loop().time()
    task.cancel()
    await writer.close(seconds=0.1)
    assert asyncio.get_running_loop().time() - began < 5
    answers.set()
    store.close()


async def test_what_a_volume_does_not_take_at_the_jobs_end_is_counted(tmp_path, monkeypatch):
    """No coordinator may come after it."""
    store, answers = opened(tmp_path), threading.Event()
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples())
    writer.use_prompts(Texts())
    write = SampleFolder.write
    monkeypatch.setattr(
        SampleFolder, "write", lambda self, step, *given: write(self, step, *given) if step == 1 else answers.wait(30)
    )
    task = asyncio.create_task(writer.run())
    for step in (1, 2, 3):
        play_round(store, step)
    for step in (1, 2, 3):
        close(writer, step)
    await written(tmp_path, 1)
    play_round(store, 4)
    close(writer, 4)
    writer.evaluated(EvaluationResult("check", 4, 5, 1, 1))
    began = asyncio.get_running_loop().time()
    warning = await writer.finish(seconds=1)
    assert warning is not None
    assert (warning.reason, warning.message) == (
        SAMPLES_NOT_WRITTEN,
        "4 files of samples and lengths were not written within 1 s of the job's end: the volume does not answer. "
        "They stay in the store until a coordinator continues the job. Check that "
        f"{tmp_path / 'samples'} can be written to and has space.",
    )
    task.cancel()
    await writer.close()
    assert asyncio.get_running_loop().time() - began < 5, "and it does not wait a second time"
    assert store.samples.due() == (2, 3, 4)
    answers.set()
    store.close()


async def test_a_job_whose_files_are_written_ends_without_a_warning(tmp_path):
    store = opened(tmp_path)
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples())
    writer.use_prompts(Texts())
    play_round(store, 1)
    close(writer, 1)
    assert await writer.finish() is None
    assert SampleFolder(tmp_path).rounds() == [1]
    store.close()


async def test_lengths_need_no_samples_and_a_rewind_replaces_abandoned_ones(tmp_path):
    store, lengths = opened(tmp_path), LengthFolder(tmp_path)
    writer = writer_of(tmp_path, store, Samples())
    await writer.use(Samples(per_round=0, keep_rounds=3))
    writer.use_prompts(Texts())
    for step in (1, 2, 3, 4):
        play_round(store, step, prompts=2)
        close(writer, step)
    await writer.close()
    assert lengths.rounds() == [2, 3, 4], "also without samples"
    assert [(row["input"], row["output"], row["kept"]) for row in lengths.read(4)] == [
        (10, [2, 2], True),
        (11, [2, 2], True),
    ]
    store.rewind(2)
    for step in (3, 4):
        play_round(store, step, prompts=1)
        close(writer, step)
    await writer.close()
    assert [len(list(lengths.read(step))) for step in lengths.rounds()] == [2, 1, 1]
    store.close()


async def test_the_turns_of_an_episode_have_texts_in_place_of_tokens(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    writer = writer_of(tmp_path, store, Samples(per_round=8, keep_rounds=2))
    await writer.use(Samples(per_round=8, keep_rounds=2))
    writer.use_prompts(CallTexts())
    play_episode_round(store, 1, PromptKey(1, 0))
    close(writer, 1)
    await writer.finish()
    (sample,) = SampleFolder(tmp_path).read(1)
    assert sample.episode is not None
    first, second = sample.episode.turns
    assert (first.given, first.sampled, first.given_ids, first.sampled_ids) == ("1", "3", (), ())
    assert (second.given, second.sampled) == ("4", '<tool_call>{"name": "add", "arguments": {}}</tool_call>')
    assert second.calls == (SampleCall("add", "{}"),), "no request came after it, so its text is parsed"
    assert sample.response == "3 5 6"
    store.close()


class CallTexts(Texts):
    """Texts in which tokens 5 and 6 are a call."""

    def decode(self, token_ids: Sequence[int]) -> str:
        call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
        return call if tuple(token_ids) == (5, 6) else super().decode(token_ids)
