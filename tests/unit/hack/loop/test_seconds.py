"""What a run measured orders the next one. A run that was interrupted orders nothing, and hinders nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack.loop.seconds import known, results, servers

CASE = (
    '<testcase classname="tests.unit.test_a" name="test_b" time="2.5">'
    '<properties><property name="server" value="kueue"/></properties></testcase>'
)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"unit": {"tests.unit.test_a": 9, "tests.unit.test_c": 1}, "server": {}}))
    return path


def run(folder: Path, text: str) -> None:
    results("unit", folder).write_text(text, encoding="utf-8")


def test_measured_seconds_take_precedence(kept: Path, tmp_path: Path) -> None:
    run(tmp_path, f"<testsuites><testsuite>{CASE}{CASE}</testsuite></testsuites>")
    assert known("unit", kept, tmp_path) == {"tests.unit.test_a": 5.0, "tests.unit.test_c": 1}
    assert servers(kept, tmp_path) == {"tests.unit.test_a": "kueue"}


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("", 9),
        (f"<testsuites><testsuite>{CASE}", 9),
        (f'<testsuites><testsuite>{CASE}<testcase time="1"><error/></testcase></testsuite></testsuites>', 2.5),
    ],
    ids=["an empty file", "half a file", "an error of pytest itself"],
)
def test_an_interrupted_run_hinders_no_later_one(kept: Path, tmp_path: Path, text: str, measured: float) -> None:
    run(tmp_path, text)
    assert known("unit", kept, tmp_path)["tests.unit.test_a"] == measured
    assert servers(kept, tmp_path) in ({}, {"tests.unit.test_a": "kueue"})
