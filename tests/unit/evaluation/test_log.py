"""The log of evaluations: each is there once, also after a restart, a rewind and a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.evaluation import EvaluationLog, EvaluationResult, read_evaluations
from rljob_runtime.evaluation.history import History, with_result

PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 4))


def result(name: str = "a", round: int = 0, average: float = 0.5) -> EvaluationResult:
    return EvaluationResult(name, round, round + 1, 2, 4, average=average)


def test_evaluations_come_back_by_round(tmp_path: Path) -> None:
    log = EvaluationLog(tmp_path / "job")
    written = (result("a", 10), result("b", 10), result("a", 20))
    for one in written:
        log.append(one)
    assert read_evaluations(tmp_path / "job") == written


def test_an_evaluation_is_there_once(tmp_path: Path) -> None:
    for average in (0.1, 0.2):
        EvaluationLog(tmp_path).append(result(average=average))
    assert read_evaluations(tmp_path) == (result(average=0.2),)


def test_rounds_that_are_trained_again_are_deleted_with_the_first_of_them(tmp_path: Path) -> None:
    log = EvaluationLog(tmp_path)
    for name, round in (("a", 0), ("a", 10), ("b", 10), ("a", 20)):
        log.append(result(name, round))
    EvaluationLog(tmp_path).append(result("b", 10, 0.7))
    assert [(one.name, one.round, one.average) for one in read_evaluations(tmp_path)] == [
        ("a", 0, 0.5),
        ("a", 10, 0.5),
        ("b", 10, 0.7),
    ]


def test_an_incomplete_line_is_no_evaluation_and_does_not_corrupt_the_next(tmp_path: Path) -> None:
    log = EvaluationLog(tmp_path)
    log.append(result("a", 0))
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write(result("a", 1).to_json()[:20])
    assert read_evaluations(tmp_path) == (result("a", 0),)
    log.append(result("a", 2))
    assert read_evaluations(tmp_path) == (result("a", 0), result("a", 2))


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EvaluationLog(tmp_path)
    log.append(result("a", 0))

    class Full:
        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def tell(self) -> int:
            return self.file.tell()

        def truncate(self, size: int) -> None:
            self.file.truncate(size)

        def write(self, data: memoryview) -> int:
            if len(data) < 50:
                raise OSError(28, "No space left on device")
            return self.file.write(data[:-49])

    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode="r", **rest: Full(opened(self, mode, **rest)))
        with pytest.raises(OSError, match="No space"):
            log._write_line(result("a", 1))
    assert (tmp_path / "evaluations.jsonl").read_text() == result("a", 0).to_json() + "\n"


def test_a_folder_without_evaluations_has_none(tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == ()
    assert not (tmp_path / "evaluations.jsonl").exists()


@given(st.lists(PLACES, max_size=20))
def test_the_file_is_the_history(tmp_path_factory: pytest.TempPathFactory, places: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("log")
    history: History = ()
    for number, (name, round) in enumerate(places):
        one = result(name, round, float(number))
        EvaluationLog(folder).append(one)
        history = with_result(history, one)
        assert read_evaluations(folder) == tuple(sorted(history, key=lambda one: one.round))
