"""Coordinators that are killed around calls of their store."""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.status import FinishedOutcome
from rljob_runtime.simulator.core import virtual_time
from tests.support.simulated_job import Stage


class Crash(BaseException):
    """As SIGKILL: nothing in between sees it coming."""


class CrashAt:
    """Raises `Crash` at the n-th moment around a store call; then never again."""

    def __init__(self, moment: int, begun: Callable[[], bool] = lambda: True) -> None:
        """Count the moments since `begun`."""
        self.left = moment
        self._begun = begun

    def __call__(self, moment: str) -> None:
        if not self._begun():
            return
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
        finished = await stage.coordinate()
        assert finished is not None
        assert finished.outcome is FinishedOutcome.COMPLETE
        return len(crashes) + 1

    return virtual_time.run(lives())
