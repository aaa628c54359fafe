"""Which rounds get a file of lengths."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.samples.length_writer import LengthWriter, unwritten
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, PromptKey, Response, TrajectoryKey
from rljob_runtime.samples import LengthFolder
from rljob_runtime.scheduling.round_plan import PromptOutcome


@pytest.mark.parametrize(
    ("name", "closed", "written", "first", "keep", "expected"),
    [
        ("a new job", [], [], None, 5, []),
        ("the next round", [1, 2, 3], [1, 2], 3, 5, [3]),
        ("a former coordinator left two", [1, 2, 3, 4], [1, 2], None, 5, [3, 4]),
        ("old rounds are not kept", [1, 2, 3, 4], [], None, 2, [3, 4]),
        ("rewound and closed again", [1, 2, 3, 4], [1, 2, 3, 4, 5], 3, 5, [3, 4]),
        ("rewound, and the coordinator was replaced", [1, 2, 3], [1, 2, 3, 4], None, 5, [3]),
        ("nothing new", [1, 2], [1, 2], None, 5, []),
    ],
)
def test_rounds_to_write(name, closed, written, first, keep, expected):
    assert unwritten(closed, written, first, keep) == expected, name


@pytest.mark.parametrize(
    ("name", "closed", "written", "first", "expected"),
    [
        ("a new job", [], [], None, []),
        ("the first round", [1], [], 1, [1]),
        ("the newest one", [1, 2, 3], [1, 2, 3], None, [3]),
        ("the newest one that a former coordinator closed", [1, 2, 3, 4], [1, 2], 4, [3, 4]),
        ("rewound, and the coordinator was replaced", [1, 2, 3], [1, 2, 3, 4], None, [3]),
        ("and a round is closed since", [1, 2, 3], [1, 2, 3, 4], 3, [2, 3]),
    ],
)
def test_rounds_that_a_new_coordinator_writes(name, closed, written, first, expected):
    assert unwritten(closed, written, first, 5, resumes=True) == expected, name


def test_a_failed_write_is_tried_again_after_a_rewind(tmp_path: Path) -> None:
    """Files of the abandoned history stay on a full disk, and are replaced when there is room again."""
    folder = tmp_path / "lengths"
    folder.mkdir()
    for number in range(4, 11):
        (folder / f"round-{number:06}.jsonl").write_text("")
    closed, written, full = [4, 5, 6], [], [OSError("no space left")]

    class Closed:
        async def do(self, work: object) -> list[int]:
            return list(closed)

    async def write(step: int, prompt_tokens: object, keep: int) -> None:
        if full:
            raise full.pop()
        written.append(step)

    writer = LengthWriter(tmp_path, Closed())
    writer._write = write
    writer.closed(6)
    asyncio.run(writer.write_due(None, 50))
    assert written == []
    closed.append(7)
    writer.closed(7)
    asyncio.run(writer.write_due(None, 50))
    assert written == [5, 6, 7], "and the round before: this coordinator has not seen its file"


@pytest.mark.parametrize(("late", "written"), [(None, []), (3, [3])])
def test_the_last_round_is_written_again_with_what_was_filtered_after_it(tmp_path: Path, late, written) -> None:
    folder = tmp_path / "lengths"
    folder.mkdir()
    for number in (1, 2, 3):
        (folder / f"round-{number:06}.jsonl").write_text("")
    answers, found = [[1, 2, 3], late, [1, 2, 3]], []

    class Answers:
        async def do(self, work: object) -> object:
            return answers.pop(0)

    async def write(step: int, prompt_tokens: object, keep: int) -> None:
        found.append(step)

    writer = LengthWriter(tmp_path, Answers())
    writer._write = write
    asyncio.run(writer.write_due(None, 50))
    found.clear()
    asyncio.run(writer.end())
    asyncio.run(writer.write_due(None, 50))
    assert found == written


class Killed(BaseException):
    """The process ends."""


class Access:
    """`StoreAccess` without a thread. The process ends after the first call if it `dies`."""

    def __init__(self, store: Store, dies: bool = False) -> None:
        self._store = store
        self._dies = dies

    async def do(self, work: Callable[[Store], object]) -> object:
        result = work(self._store)
        if self._dies:
            raise Killed
        return result


async def some_tokens(keys: Sequence[PromptKey]) -> list[int]:
    return [3] * len(keys)


def ended(store: Store, prompt: PromptKey, filtered: bool) -> None:
    """Draw a prompt, and end its group with one response of two tokens."""
    key = TrajectoryKey(prompt, 0)
    store.experience.draw([prompt], Cursor(0, prompt.index + 1), 1, "rollout-0", 1)
    response = Response(key, 1, 1, (), (), FinishReason.STOP, "rollout-0")
    store.experience.finish([Tokens(key, 0, (5, 6), [-0.5, -0.5])], [response])
    store.experience.score([(key, 1.0)])
    if filtered:
        store.experience.end([prompt], PromptOutcome.FILTERED, "EqualRewards")
        return
    step = store.boundaries.newest().step + 1
    store.experience.assign(step, [prompt])
    store.experience.close_update(Boundary(step, store.experience.cursor(), report=RoundReport(round=step)))


@pytest.mark.parametrize("closes_another", [False, True])
def test_a_kill_between_count_and_file_loses_no_lengths(tmp_path: Path, closes_another: bool) -> None:
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()), pool=Pool())
    store.versions.publish(1, 0)
    ended(store, PromptKey(0, 0), filtered=False)
    first = LengthWriter(tmp_path, Access(store))
    asyncio.run(first.write_due(some_tokens, 50))
    ended(store, PromptKey(0, 1), filtered=True)
    first._store = Access(store, dies=True)
    with pytest.raises(Killed):
        asyncio.run(first.end())

    second = LengthWriter(tmp_path, Access(store))
    if closes_another:
        ended(store, PromptKey(0, 2), filtered=False)
        second.closed(2)
    asyncio.run(second.write_due(some_tokens, 50))
    assert [row["kept"] for row in LengthFolder(tmp_path).read(1)] == [True, False]
    store.close()
