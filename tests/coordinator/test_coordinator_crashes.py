"""The coordinator killed around any call of its store, and started again: runs end as if nothing had been."""

import random

import pytest
from coordinator_kit import Stage, job

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.store import Store
from rljob_runtime.simulation import clock


class Crash(BaseException):
    """As SIGKILL: nothing in between sees it coming."""


class CrashAt:
    """Raises `Crash` at the n-th moment around a store call; then never again."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, moment: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def play_through(stage: Stage, crashes: list[int]) -> int:
    """Play, crash, play on; how many coordinators it took."""

    async def lives() -> int:
        for life, moment in enumerate(crashes, 1):
            stage.around = CrashAt(moment)
            try:
                await stage.coordinate()
            except Crash:
                continue
            return life
        stage.around = lambda moment: None
        assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE
        return len(crashes) + 1

    return clock.run(lives())


def check_whole(stage: Stage, responses: int) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == responses
    store = Store(stage.path, "uid-1")
    assert store.outcomes() == {"trained": responses}
    assert store.round_under_way() is None
    store.close()


@pytest.mark.parametrize("moment", range(1, 60, 2))
def test_killed_around_any_store_call(tmp_path, moment):
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=2))
    play_through(stage, [moment])
    check_whole(stage, 8)
    assert stage.control.last.finished is not None


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again(tmp_path, seed):
    rng = random.Random(seed)
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, prompts=2), seed=seed)
    lives = play_through(stage, [rng.randrange(3, 25) for _ in range(6)])
    check_whole(stage, 12)
    terms = [report.term for report in stage.control.reports]
    assert terms == sorted(terms)
    assert stage.control.last.totals.coordinator_restarts == lives - 1
