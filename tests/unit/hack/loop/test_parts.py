"""Parts run in their order up to the first failure, and each has its seconds."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import pytest

from hack.loop.__main__ import BUDGETS
from hack.loop.parts import Part, Row, report, run, table, warning
from hack.resumable import Resumable


def python(name: str, program: str, **how: bool) -> Part:
    return Part(name, (sys.executable, "-c", program), **how)


def until_gone(pid: Path) -> str:
    """Return a program that waits until the process in this file is gone.

    A part in the background runs on idle processors, so no time is enough."""
    return (
        f"import pathlib, time; pid = pathlib.Path({str(pid)!r})\n"
        "while not pid.exists() or not pid.read_text(): time.sleep(0.01)\n"
        "while pathlib.Path('/proc', pid.read_text()).exists(): time.sleep(0.01)"
    )


def test_a_failure_ends_the_rest(tmp_path: Path) -> None:
    rows: list[Row] = []
    parts = [
        python("good", ""),
        python("bad", "raise SystemExit(3)"),
        python("never", f"open({str(tmp_path / 'run')!r}, 'w')"),
    ]
    assert not run(parts, rows)
    assert [(row.part, row.passed) for row in rows] == [("good", True), ("bad", False)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("may_be_empty", [False, True])
def test_no_test_is_a_success_only_where_it_may_be(may_be_empty: bool) -> None:
    assert run([python("none", "raise SystemExit(5)", may_be_empty=may_be_empty)], []) is may_be_empty


def test_seconds_are_the_clocks() -> None:
    rows: list[Row] = []
    clock = itertools.accumulate([100.0, 7.0, 1.0, 2.5])
    run([python("a", ""), python("b", "")], rows, lambda: next(clock))
    assert [row.seconds for row in rows] == [7.0, 2.5]


def test_what_runs_beside_runs_meanwhile_and_is_printed_at_the_end(tmp_path: Path, capfd) -> None:
    """The part in the foreground ends only when the one beside it has run."""
    mark = tmp_path / "mark"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)"
    marks = f"import pathlib; pathlib.Path({str(mark)!r}).touch(); print('seeds done')"
    rows: list[Row] = []
    assert run([python("beside", marks, background=True), python("tests", waits)], rows)
    assert [row.part for row in rows] == ["tests", "beside"]
    assert "seeds done" in capfd.readouterr().out


def test_a_pass_beside_prints_its_last_line_only(capfd: pytest.CaptureFixture[str]) -> None:
    """A log's end would else be that of a part that passed."""
    assert run([python("lint", "print('contract KEPT\\n' * 50 + '14 kept')", background=True)], [])
    assert capfd.readouterr().out.splitlines()[:-1] == ["── lint", "── lint", "14 kept"]


def test_a_failure_beside_is_a_failure() -> None:
    rows: list[Row] = []
    assert not run([python("beside", "raise SystemExit(1)", background=True)], rows)
    assert [(row.part, row.passed) for row in rows] == [("beside", False)]


def test_what_fails_beside_is_told_after_the_part_that_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = []
    pid = tmp_path / "pid"
    fails = (
        "import os, pathlib; print('a line too long');"
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); raise SystemExit(1)"
    )
    parts = [
        python("lint", fails, background=True),
        python("unit", until_gone(pid)),
        python("never", "raise SystemExit(1)"),
    ]
    assert not run(parts, rows)
    assert [(row.part, row.passed) for row in rows] == [("unit", True), ("lint", False)]
    assert "a line too long" in capfd.readouterr().out


def test_a_run_that_goes_on_tells_all_failures() -> None:
    rows: list[Row] = []
    parts = [
        python("beside", "raise SystemExit(1)", background=True),
        python("bad", "raise SystemExit(1)"),
        python("good", ""),
    ]
    assert not run(parts, rows, go_on=True)
    assert sorted((row.part, row.passed) for row in rows) == [("bad", False), ("beside", False), ("good", True)]


def test_the_next_run_of_a_tree_runs_what_has_not_passed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    def noted(name: str, fails: bool, **how: bool) -> Part:
        return python(name, f"open({str(ran)!r}, 'a').write({name!r} + ' '); raise SystemExit({int(fails)})", **how)

    def some(bad: bool, tree: str) -> tuple[list[tuple[str, bool]], str]:
        rows: list[Row] = []
        ran.write_text("")
        parts = [
            noted("beside", False, background=True),
            noted("build", False, prepares=True),
            noted("cluster", bad),
            noted("engine", False),
        ]
        run(parts, rows, go_on=True, passed_before=Resumable(tmp_path / "passed.json", tree))
        return sorted((row.part, row.passed) for row in rows), " ".join(sorted(ran.read_text().split()))

    every = [("beside", True), ("build", True), ("cluster", False), ("engine", True)]
    assert some(True, "this tree") == (every, "beside build cluster engine")
    passed = [(name, True) for name, _ in every]
    assert some(False, "this tree") == (passed, "build cluster")
    assert some(False, "another tree") == (passed, "beside build cluster engine")


def test_what_ended_beside_is_kept_before_an_interruption(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    ends = f"import os, pathlib; pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
    passed_before, rows = Resumable(tmp_path / "passed.json", "tree"), list[Row]()
    parts = [
        python("lint", ends, background=True),
        python("unit", until_gone(pid)),
        Part("absent", ("/no/such/program",)),
    ]
    with pytest.raises(FileNotFoundError):
        run(parts, rows, go_on=True, passed_before=passed_before)
    assert {name for name, _ in Resumable(tmp_path / "passed.json", "tree").entries} == {"lint", "unit"}


def test_a_part_that_passed_before_has_its_seconds(tmp_path: Path) -> None:
    clock = itertools.accumulate([100.0, 7.0])
    for _ in range(2):
        rows: list[Row] = []
        run([python("a", "")], rows, clock.__next__, passed_before=Resumable(tmp_path / "passed.json", "tree"))
        assert rows == [Row("a", 7.0, True)]


def test_what_runs_beside_ends_with_a_failure(tmp_path: Path) -> None:
    """With every process of its own."""
    pid = tmp_path / "pid"
    sleeps = (
        "import pathlib, subprocess; child = subprocess.Popen(['sleep', '600']);"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid)); child.wait()"
    )
    fails = (
        f"import pathlib, time; pid = pathlib.Path({str(pid)!r})\n"
        "while not pid.exists() or not pid.read_text(): time.sleep(0.01)\n"
        "raise SystemExit(1)"
    )
    assert not run([python("beside", sleeps, background=True), python("bad", fails)], [])
    status = Path("/proc", pid.read_text(), "stat")
    deadline = time.monotonic() + 60
    while status.exists() and ") Z" not in status.read_text():
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.01)


def interrupted(file: Path) -> None:
    with report("make test", file) as rows:
        rows.append(Row("unit", 12.4, False))
        raise KeyboardInterrupt


def test_a_table_ends_every_run_and_a_file_has_the_same(tmp_path: Path, capsys) -> None:
    file = tmp_path / "loop" / "test.json"
    with pytest.raises(KeyboardInterrupt):
        interrupted(file)
    assert "unit           12 s  FAILED\nmake test " in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert [(part["part"], part["passed"]) for part in found["parts"]] == [("set-up", True), ("unit", False)]


def test_failed_tests_follow_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with report("make test", tmp_path / "test.json") as rows:
        (tmp_path / "real-nodes.xml").write_text(
            '<testsuites><testsuite><testcase classname="tests.e2e.test_job" name="test_a[x]">'
            '<failure message="assert 1 ==&#10;  2">…</failure></testcase></testsuite></testsuites>'
        )
        rows.append(Row("real nodes", 12.0, False))
    assert capsys.readouterr().out.splitlines()[-1] == "real nodes: tests.e2e.test_job::test_a[x]: assert 1 == 2"


def test_a_table_is_aligned() -> None:
    assert table("make test", [Row("lint", 5.2, True), Row("real nodes", 612.0, True)], 617.4).splitlines() == [
        "lint             5 s",
        "real nodes     612 s",
        "make test      617 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "budget", "end"),
    [
        (1500.0, 1500.0, "make test    1500 s"),
        (9000.0, None, "make test    9000 s"),
        (
            1501.0,
            1500.0,
            "warning: make test took 1501 s, over its budget of 1500 s; "
            "its longest parts: engine 700 s, cluster 400 s, unit 300 s",
        ),
    ],
    ids=["within", "without", "over"],
)
def test_a_run_over_its_budget_warns_with_its_longest_parts(
    seconds: float,
    budget: float | None,
    end: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([1000.0, 1000.0 + seconds])
    monkeypatch.setattr("hack.loop.parts.time.time", lambda: next(clock))
    with report("make test", tmp_path / "test.json", began=1000.0, budget=budget) as rows:
        rows += [Row("unit", 300.0, True), Row("cluster", 400.0, True), Row("engine", 700.0, True)]
    assert capsys.readouterr().out.splitlines()[-1] == end
    assert json.loads((tmp_path / "test.json").read_text(encoding="utf-8"))["budget_seconds"] == budget


def test_make_test_has_a_budget_of_25_minutes() -> None:
    assert BUDGETS["test"] == 25 * 60
    assert "test-all" not in BUDGETS
    assert warning("make test", [], 1.0, BUDGETS["test"]) is None
