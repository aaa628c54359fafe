"""Time in which no coordinator answers is not the policy's: no attempt that was under way ends truncated by it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols.environments import EpisodeReport, HarnessLimit
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.limits import Limit, Limits
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.simulator.peers.harness import HarnessScript
from tests.support.episode_book import KEY, Bench, bench
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job

OUT_OF_TIME = EpisodeReport(0.0, limit=HarnessLimit.SECONDS)
"""Of a harness that its deadline ended: at 1060, 60 s after its lease."""


@asynccontextmanager
async def restored(
    tmp_path: Any, at: float, recovery: Recovery = Recovery.NEXT_TURN, limits: Limits | None = None
) -> AsyncIterator[tuple[Bench, EpisodeAttempt]]:
    """Yield the next coordinator at a moment, with an attempt of 1000 whose turn was stored at 1010."""
    async with bench(tmp_path, limits, recovery=recovery) as made:
        await made.launch()
        episode = (await made.leased(journals=True)).episode
        made.now[0] = 1010.0
        await made.answered(made.ask(episode, [1]), [5])
    async with bench(tmp_path, limits, recovery=recovery) as made:
        made.now[0] = at
        await made.launch(attempt=2, prefix=[5])
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        yield made, episode


async def reported(made: Bench, episode: EpisodeAttempt, report: EpisodeReport = OUT_OF_TIME) -> KeptEpisode:
    await made.book.runners.done(ENVIRONMENT, "r", episode, report)
    kept = made.store.turns.newest([KEY])[KEY]
    assert kept.end is not None
    return kept


async def test_the_harnesss_own_deadline_comes_before_the_coordinators(tmp_path: Any) -> None:
    async with restored(tmp_path, 1040.0) as (made, episode):
        assert made.book.number(episode.attempt).deadline == 1060.0 + 30.0
        made.now[0] = 1061.0
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        assert not asked.done(), "an engine generates the turn"
        asked.cancel()


async def test_a_time_out_after_an_outage_is_a_failure_of_ours(tmp_path: Any) -> None:
    async with restored(tmp_path, 1040.0) as (made, episode):
        made.now[0] = 1060.0
        kept = await reported(made, episode)
        assert (kept.end.state, kept.end.cause, kept.reward) == (EndState.ABORTED, AbortCause.GATEWAY, None)
        assert kept.end.detail == "no coordinator answered for a part of its time, and its time was over"


@pytest.mark.parametrize(
    ("limits", "report", "state"),
    [
        (Limits(), EpisodeReport(0.5), EndState.COMPLETED),
        (Limits(turns=1), EpisodeReport(0.5, limit=HarnessLimit.TURNS), EndState.TRUNCATED),
    ],
    ids=["by itself", "all turns"],
)
async def test_an_outage_changes_no_other_end(tmp_path: Any, limits: Limits, report: EpisodeReport, state: Any) -> None:
    async with restored(tmp_path, 1040.0, limits=limits) as (made, episode):
        kept = await reported(made, episode, report)
        assert (kept.end.state, kept.reward) == (state, 0.5)


@pytest.mark.parametrize(
    ("recovery", "deadline", "state"),
    [
        (Recovery.NEXT_TURN, 1060.0 + 30.0 + 31.0, EndState.ABORTED),
        (Recovery.RERUN, 1071.0 + 60.0, EndState.TRUNCATED),
    ],
)
async def test_the_next_runner_has_the_time_of_the_outage_or_all_of_it(
    tmp_path: Any, recovery: Recovery, deadline: float, state: EndState
) -> None:
    """A pause counts the limit again. A program that runs again does so after the outage."""
    async with restored(tmp_path, 1040.0, recovery) as (made, _):
        made.lose_runner()
        assert made.now[0] == 1071.0
        leased = await made.leased(journals=True)
        assert leased.deadline == deadline
        if recovery is Recovery.RERUN:
            await made.book.turns.turn(made.ask(leased.episode, [1]))
        made.now[0] = deadline
        assert (await reported(made, leased.episode)).end.state is state


def test_no_time_out_of_a_job_spans_two_coordinators(tmp_path: Any) -> None:
    """An invariant of the stage says so. Tools take about all of the time that there is."""
    script, shape = HarnessScript(turns=8, tool_seconds=5.0, seed=3), job(rounds=2, prompts=6, responses=4)
    stage = EpisodeStage(tmp_path / "state.db", job=shape, script=script, seconds=30.0)
    stage.play_through([150, 150])
    assert stage.totals().aborts[AbortCause.ENVIRONMENT] > 0, "their runners know of the outage"
    with closing(sqlite3.connect(stage.path)) as db:
        reached = {one for (one,) in db.execute("SELECT reached FROM episodes WHERE reached IS NOT NULL")}
    assert reached == {Limit.SECONDS.value}, "without an outage it is the policy's time"
