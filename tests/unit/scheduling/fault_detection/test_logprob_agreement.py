"""A first round whose engine and trainer compute different things does not become a second one."""

from __future__ import annotations

import asyncio
import math

import pytest

from rljob_api.constants import ENGINE_MISMATCH, HALTING
from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.scheduling.fault_detection.logprob_agreement import LARGEST_MISMATCH, engine_mismatch
from tests.support.simulated_job import Stage, job, until


@pytest.mark.parametrize("kl", [0.0, 1e-9, 0.003, LARGEST_MISMATCH])
def test_what_rounding_explains_is_no_mismatch(kl: float) -> None:
    assert engine_mismatch(kl) is None


@pytest.mark.parametrize("kl", [math.nextafter(LARGEST_MISMATCH, 1), 5.4, math.inf, math.nan])
def test_any_other_is_said_with_its_figure(kl: float) -> None:
    assert f"KL is {kl:.3g} a token" in (engine_mismatch(kl) or "")


def problems(stage: Stage) -> dict[str, str]:
    return {problem.reason: problem.message for problem in stage.control.last.warnings}


def test_a_job_whose_engine_disagrees_stops_at_its_first_round(tmp_path) -> None:
    stage, told = Stage(tmp_path / "state.db", job=job(rounds=3)), {}
    stage.world.costs.mismatch = 5.4

    async def look(stage: Stage) -> None:
        await asyncio.sleep(5000)
        told.update(problems(stage))
        assert stage.rounds == []
        assert stage.control.last.stage != "Finished"
        stage.coordinator.stop()

    assert stage.play(look) is None
    assert "KL is 5.4 a token" in told[ENGINE_MISMATCH]
    assert ENGINE_MISMATCH in HALTING, "the operator makes it Stalled"


def test_later_rounds_are_not_held_up(tmp_path) -> None:
    """There the figure is one to look at: weights have moved, and a clip bounds what it does."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=3))

    async def drift(stage: Stage) -> None:
        await until(lambda: stage.rounds == [1])
        stage.world.costs.mismatch = 5.4

    assert stage.play(drift).outcome is FinishedOutcome.COMPLETE


def test_samples_of_older_weights_may_differ(tmp_path) -> None:
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, mode=Mode.ASYNCHRONOUS))
    stage.world.costs.mismatch = 5.4
    assert stage.play().outcome is FinishedOutcome.COMPLETE
