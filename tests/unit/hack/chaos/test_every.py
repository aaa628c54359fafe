"""Faults of every kind are campaigns of several jobs, which share the faults that were asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.chaos import __main__ as chaos
from hack.chaos.every import parts, summary
from hack.chaos.rows import AGENTS, ROWS, SWITCHES


@given(st.integers(0, 1000))
def test_all_faults_are_shared_and_each_kind_comes_about_as_often(faults: int) -> None:
    found = parts(faults)
    assert sum(part.faults for part in found) == faults
    assert all(abs(part.faults - faults * len(part.rows) / len(ROWS)) < 1 for part in found)
    assert found[0].name == "plain"


def test_together_they_have_every_row_once() -> None:
    found = parts(len(ROWS))
    assert Counter(row for part in found for row in part.rows) == Counter(list(ROWS))
    assert [(part.name, part.faults) for part in found] == [("plain", 18), ("agents", 7), ("switches", 16)]
    assert (set(found[1].rows), set(found[2].rows)) == (AGENTS, SWITCHES)
    assert [part.faults for part in parts(100)] == [44, 17, 39]
    assert [part.name for part in parts(0)] == ["plain"]
    with pytest.raises(ValueError, match="0 or more"):
        parts(-1)


def test_each_campaign_is_a_command_that_chaos_takes(tmp_path: Path) -> None:
    files = []
    for part in parts(100):
        args = chaos.asked(part.arguments(7, tmp_path / "chaos.json"))
        assert (tuple(chaos.rows_of(args)), args.faults, args.seed) == (part.rows, part.faults, 7)
        files.append(args.json.name)
    assert files == ["chaos.json", "chaos-agents.json", "chaos-switches.json"]
    assert "--json" not in parts(1)[0].arguments(0, None)


@pytest.mark.parametrize("more", [["--agents"], ["--rows", "node-off"], ["--turns", "20"], ["--rounds", "9"]])
def test_every_kind_has_campaigns_of_its_own(more: list[str]) -> None:
    with pytest.raises(SystemExit):
        chaos.asked(["--every", *more])


def result(faults: int, wrong: int = 0, trouble: str = "", **check: Any) -> dict[str, Any]:
    told = [{"wrong": ["late"]}] * wrong + [{"wrong": []}] * (faults - wrong)
    leaked = check.pop("leaked", 0)
    return {"faults": told, "trouble": trouble, "check": check or {"lost": 0, "duplicated": 0}, "leaked": leaked}


@pytest.mark.parametrize(
    ("found", "all_ran", "line"),
    [
        ([result(69), result(12)], True, "Complete faults=81 unmended=0 lost=0 duplicated=0 leaked=0"),
        (
            [result(69), result(12, lost=2, duplicated=1)],
            True,
            "Complete faults=81 unmended=0 lost=2 duplicated=1 leaked=0",
        ),
        ([result(69, wrong=3)], False, "Failed faults=69 unmended=3 lost=0 duplicated=0 leaked=0"),
        (
            [result(1), result(2, trouble="the job failed")],
            True,
            "Failed faults=3 unmended=0 lost=0 duplicated=0 leaked=0",
        ),
        (
            [result(1), result(2, error="no store")],
            True,
            "Complete faults=3 unmended=0 lost=unknown duplicated=unknown leaked=0",
        ),
        (
            [result(1, leaked=2), result(2, leaked="unknown")],
            True,
            "Complete faults=3 unmended=0 lost=0 duplicated=0 leaked=unknown",
        ),
        ([result(1, leaked=2), result(2, leaked=1)], True, "Complete faults=3 unmended=0 lost=0 duplicated=0 leaked=3"),
        ([], False, "Failed faults=0 unmended=0 lost=unknown duplicated=unknown leaked=unknown"),
    ],
)
def test_the_last_line_is_of_all_campaigns(found: list[dict[str, Any]], all_ran: bool, line: str) -> None:
    assert summary(found, all_ran) == f"chaos: {line}"


@pytest.mark.parametrize(("statuses", "ran", "status"), [([0, 0, 0], 3, 0), ([0, 1], 2, 1), ([130], 1, 130)])
def test_campaigns_follow_each_other_until_one_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: list[int],
    ran: int,
    status: int,
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> int:
        commands.append(command)
        ended = statuses[len(commands) - 1]
        if ended != 130:
            faults = int(command[command.index("--faults") + 1])
            Path(command[command.index("--json") + 1]).write_text(json.dumps(result(faults)))
        return ended

    monkeypatch.setattr(chaos, "run_to_end", run)
    monkeypatch.setattr(chaos, "unwind_on_signals", lambda: None)
    stale = tmp_path / "chaos.json"
    stale.write_text(json.dumps(result(5)))
    assert chaos.main(["--every", "--faults", str(len(ROWS)), "--json", str(stale)]) == status
    assert len(commands) == ran
    last = capsys.readouterr().out.splitlines()[-1]
    faults = {3: len(ROWS), 2: 25, 1: 0}[ran]
    assert last.startswith(f"chaos: {'Complete' if status == 0 else 'Failed'} faults={faults} ")
