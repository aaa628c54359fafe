"""Samples of open episodes are bounded in number, and say what was there when they were taken."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rljob_runtime.scheduling.episodes.levels import Level, Levels


@pytest.mark.parametrize("seconds", [1, 5, 8, 9, 100, 4_000])
def test_samples_of_long_rounds_are_few_and_evenly_spaced(seconds: int) -> None:
    levels = Levels(8)
    for now in range(seconds):
        if levels.due(now):
            levels.add(now, {"calc": Level(model=now)})
    samples = levels.take()["calc"] if seconds > 1 else []
    assert len(samples) <= 8
    assert len(samples) >= min(4, seconds - 1)
    assert all(level.model == at for at, level in samples)
    assert len({later[0] - one[0] for one, later in pairwise(samples)}) <= 1
    assert levels.take() == {}


def test_an_environment_without_open_episodes_is_told_once_it_had_some() -> None:
    levels = Levels(8)
    levels.add(0, {"calc": Level(outside=2)})
    levels.add(1, {"code": Level(waiting=1)})
    assert levels.take() == {
        "calc": [(0, Level(outside=2)), (1, Level())],
        "code": [(1, Level(waiting=1))],
    }
    assert levels.due(1), "the next round begins with a sample"
    levels.add(1, {"calc": Level()})
    assert levels.take() == {}
