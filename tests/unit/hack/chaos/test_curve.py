"""The reward curve of a disturbed job is set beside those of undisturbed jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.chaos.curve import WINDOWS, compare, main, rewards

VALUES = st.lists(st.floats(0, 1), min_size=WINDOWS, max_size=60)


def test_a_round_played_again_counts_as_played_last(tmp_path: Path) -> None:
    lines = [{"round": 1, "reward": 0.1}, {"round": 2, "reward": 0.2}, {"round": 3, "reward": None}]
    again = [{"round": 2, "reward": 0.4}, {"round": 4, "reward": 0.5}]
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines + again), encoding="utf-8")

    assert rewards(tmp_path) == [0.1, 0.4, None, 0.5]
    assert rewards(tmp_path / "nothing") == []


@given(VALUES, st.lists(VALUES, min_size=1, max_size=3))
def test_windows_hold_every_common_round_once(disturbed: list[float], calm: list[list[float]]) -> None:
    windows = compare(disturbed, calm)

    rounds = [number for one in windows for number in range(one.first, one.last + 1)]
    assert rounds == list(range(1, min(map(len, (disturbed, *calm))) + 1))


def test_a_job_that_forgot_what_it_had_learnt_stands_out() -> None:
    learns = [number / 100 for number in range(100)]
    forgot = learns[:50] + learns[:50]
    calm = [[value + shift for value in learns] for shift in (-0.01, 0.01)]

    windows = compare(forgot, calm)

    assert all(abs(one.away) <= one.noise for one in windows[:5])
    assert all(one.away == pytest.approx(-0.5) and one.noise == pytest.approx(0.01) for one in windows[5:])


def test_too_few_rounds_are_no_curve() -> None:
    with pytest.raises(ValueError, match="9 rounds in common: 1 and 10 are the least"):
        compare([0.5] * 9, [[0.5] * 20])


def test_the_difference_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, value in (("chaos", 0.5), ("calm-1", 0.4), ("calm-2", 0.5)):
        files.append(str(tmp_path / name))
        Path(files[-1]).write_text(json.dumps({"rewards": [value] * 20}), encoding="utf-8")

    assert main(files) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "curve: mean difference +0.050, largest +0.050; undisturbed jobs from their own mean at most 0.050"
    )
