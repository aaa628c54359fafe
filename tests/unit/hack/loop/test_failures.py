"""Failed tests are named with their reasons, from the results of this run only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from hack.loop.failures import MOST, WIDTH, of_parts, written


def results(folder: Path, cases: Iterable[str]) -> None:
    file = folder / "unit.xml"
    file.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")


def case(name: str, *problems: str) -> str:
    inner = "".join(f'<{kind} message="{message}"/>' for kind, _, message in (one.partition(" ") for one in problems))
    return f'<testcase classname="tests.unit.test_x" name="{name}">{inner}</testcase>'


def test_failures_and_errors_are_named_and_others_not(tmp_path: Path) -> None:
    results(
        tmp_path,
        [
            case("passed"),
            case("skipped", "skipped no root"),
            case("failed", "failure 1 &lt; 2"),
            case("broke", "error no"),
        ],
    )
    assert list(of_parts(["unit"], {}, tmp_path)) == [
        "unit: tests.unit.test_x::failed: 1 < 2",
        "unit: tests.unit.test_x::broke: no",
    ]


def test_many_failures_are_counted_and_a_long_reason_is_cut(tmp_path: Path) -> None:
    results(tmp_path, [case(f"t{index}", f"failure {'x' * 1000}") for index in range(MOST + 3)])
    lines = list(of_parts(["unit"], {}, tmp_path))
    assert lines[-1] == "unit: … and 3 more"
    assert len(lines) == MOST + 1
    assert lines[0].endswith(f": {'x' * WIDTH}")


@pytest.mark.parametrize("text", [None, "", "<testsuites>"], ids=["absent", "empty", "cut off"])
def test_a_part_without_results_names_none(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "unit.xml").write_text(text, encoding="utf-8")
    assert list(of_parts(["unit"], {}, tmp_path)) == []


def test_results_of_an_earlier_run_name_none(tmp_path: Path) -> None:
    results(tmp_path, [case("failed", "failure x")])
    assert list(of_parts(["unit"], written(tmp_path), tmp_path)) == []


@pytest.mark.parametrize("seconds", [1.0, 1e12], ids=["behind", "ahead"])
def test_the_clock_of_files_need_not_be_that_of_processes(seconds: float, tmp_path: Path) -> None:
    before = written(tmp_path)
    results(tmp_path, [case("failed", "failure x")])
    os.utime(tmp_path / "unit.xml", (seconds, seconds))
    assert list(of_parts(["unit"], before, tmp_path)) == ["unit: tests.unit.test_x::failed: x"]
