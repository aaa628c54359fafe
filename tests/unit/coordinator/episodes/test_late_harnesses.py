"""Harnesses that never end, and harnesses that ask after their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.protocols.environments import EpisodeReport, ToolCall
from rljob_runtime.protocols.turns import AttemptEnded
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.simulator.peers.harness import Fault, HarnessScript
from tests.support.episode_book import KEY, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job

DEADLINE = 1060.0
"""Of the attempt of a bench: its lease is of 1000."""


@pytest.mark.parametrize(
    ("overtime", "at", "is_ended"),
    [
        (30.0, DEADLINE, False),
        (30.0, DEADLINE + 30.0, False),
        (30.0, DEADLINE + 30.5, True),
        (5.0, DEADLINE + 5.0, False),
        (5.0, DEADLINE + 5.5, True),
    ],
)
async def test_an_attempt_ends_after_its_overtime_though_its_runner_lives(
    tmp_path: Any, overtime: float, at: float, is_ended: bool
) -> None:
    async with bench(tmp_path, overtime=overtime) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        made.now[0] = at
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        made.book.runners.look(at)
        await settled()
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode] * is_ended
        kept = made.store.turns.newest([KEY])[KEY]
        if not is_ended:
            assert kept.end is None
            return
        assert kept.end is not None
        assert (kept.end.state, kept.end.cause, kept.reward) == (EndState.ABORTED, AbortCause.ENVIRONMENT, None)
        assert kept.end.detail == f"its runner did not end it within {overtime:g} s of its deadline"


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored yet"])
async def test_a_harness_that_asks_after_its_end_is_refused(tmp_path: Any, is_stored: bool) -> None:
    """Its answer stays the one that it ended with."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        if not is_stored:
            made.access.free.clear()
        runners, call = made.book.runners, ToolCall(2, 0, "tool", "{}", "late")
        ending = asyncio.ensure_future(runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0)))
        await settled()
        late = [
            asyncio.ensure_future(made.book.turns.turn(made.ask(episode, [1, 5, 2]))),
            asyncio.ensure_future(runners.called(ENVIRONMENT, "r", episode, call)),
        ]
        await settled()
        made.access.free.set()
        assert [type(error) for error in await asyncio.gather(*late, return_exceptions=True)] == [AttemptEnded] * 2
        await ending
        kept = made.store.turns.newest([KEY])[KEY]
        assert (len(made.engine.requests), kept.reward, kept.calls) == (1, 1.0, ())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_job_goes_on_beside_harnesses_that_hang_or_ask_too_late(tmp_path: Any, mode: Mode) -> None:
    faults = ((Fault.HANGS, 100), (Fault.ASKS_AFTER_END, 200))
    stage = EpisodeStage(
        tmp_path / "state.db",
        job=job(rounds=4, prompts=3, responses=3, mode=mode),
        script=HarnessScript(faults=faults, seed=1),
        seconds=60.0,
    )
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) > 0
    seen, totals = stage.runners.counts, stage.totals()
    assert totals.aborts[AbortCause.ENVIRONMENT] == seen[Fault.HANGS] > 0
    assert seen["refused after the end"] == 2 * seen[Fault.ASKS_AFTER_END] > 0
