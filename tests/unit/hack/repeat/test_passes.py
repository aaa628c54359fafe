"""Passes of repeated tests: failures are counted by test, and an interrupted campaign continues."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hack.repeat.__main__ import NoResults, repeat
from hack.repeat.load import load
from hack.repeat.passes import Pass, Passes, table

FAILS_ONCE = """
import pathlib, pytest
def test_right(): pass
@pytest.mark.skip
def test_not_run(): pass
def test_first_time_wrong():
    seen = pathlib.Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch()
"""


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """The command of a pass over a module with a test that fails in the first pass only."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_timing.py").write_text(FAILS_ONCE, encoding="utf-8")
    return (
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        "test_timing.py",
    )


def test_each_pass_counts_its_failures_and_an_interrupted_campaign_goes_on(
    tests: Sequence[str], tmp_path: Path
) -> None:
    repeat(Passes(tmp_path / "passes.json", "state"), 1, tests)
    after = Passes(tmp_path / "passes.json", "state")
    assert len(after.done) == 1
    repeat(after, 2, tests)
    assert [one.tests for one in after.done] == [2, 2]
    found = [one.failed for one in after.done]
    assert found == [("test_timing::test_first_time_wrong",), ()], "the first pass was not repeated"


def test_another_tree_begins_with_no_pass(tmp_path: Path) -> None:
    Passes(tmp_path / "passes.json", "before").add(Pass(1, (), 0.5))
    assert Passes(tmp_path / "passes.json", "after").done == []


def test_a_run_without_results_is_an_error(tests: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "test_timing.py").write_text("import nothing_of_this_name", encoding="utf-8")
    with pytest.raises(NoResults, match="status 2"):
        repeat(Passes(tmp_path / "passes.json", "state"), 1, tests)


def test_the_table_has_the_most_frequent_failure_first_and_the_sum_last() -> None:
    assert table([Pass(10, ("a::b",), 1.0), Pass(10, ("c::d", "a::b"), 2.0)]).splitlines() == [
        "2 of 2  a::b",
        "1 of 2  c::d",
        "2 passes, 20 tests, 3 failures, 3 s",
    ]


def test_the_load_ends_with_its_block() -> None:
    with load(2) as processes:
        assert [computes(pid) for pid in processes] == [True, True]
    assert [computes(pid) for pid in processes] == [False, False]


def computes(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
