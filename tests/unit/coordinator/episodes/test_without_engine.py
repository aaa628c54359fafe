"""Attempts that no engine generates: they keep no runner, and the time is not the policy's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.turns import AttemptEnded
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from tests.support.episode_book import KEY, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job, until

RECOVERIES = [Recovery.NEXT_TURN, Recovery.RERUN]
SILENCE = RunnerRules().silence


def racing(prompts: float, responses: float) -> Mapping[str, Any]:
    return {"enabled": True, "promptFactor": prompts, "responseFactor": responses}


def played(stage: EpisodeStage, *meanwhile: Any) -> None:
    finished = stage.play(*meanwhile)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert all(report.episodes.truncated_by_seconds == 0 for report in stage.closed)
    assert all(report.episodes.failed_attempts is None for report in stage.closed)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize(("places", "prompts", "responses"), [(2, 1, 1.5), (4, 1, 1.5)])
def test_losers_of_a_race_leave_their_places_to_others(tmp_path, places, prompts, responses, recovery):
    """They kept them until their deadline of 300 s, and nothing moved."""
    shape = job(rounds=2, prompts=6, responses=4, tail=racing(prompts, responses))
    script = HarnessScript(turns=3, tool_seconds=1.0, seed=1)
    # Without the look for attempts that no engine has for long, which frees the places later.
    rules = RunnerRules(silence=1e6)
    stage = EpisodeStage(tmp_path / "state.db", job=shape, script=script, recovery=recovery, places=places, rules=rules)
    played(stage)
    assert all(report.generation_seconds < 40 for report in stage.closed)
    assert stage.totals().aborts.keys() == {AbortCause.NOT_NEEDED}


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_loser_that_races_again_has_the_time_that_it_waited(tmp_path, recovery):
    """The winners' rewards take almost as long as an episode may, and half of them fail."""
    rewards = SimulatedRewards(seconds=lambda text: 58.0, fails={f"0.{i}": 2 for i in range(8)}, bound=1000.0)
    script = HarnessScript(turns=12, tool_seconds=1.0, rewards=0, seed=1)
    shape = job(rounds=1, prompts=4, responses=4, tail=racing(1, 1.5))
    stage = EpisodeStage(
        tmp_path / "state.db", job=shape, script=script, seconds=60.0, recovery=recovery, rewards=rewards
    )
    played(stage)
    assert stage.closed[0].aborted_samples == 8, "losers raced again"


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_an_outage_of_all_engines_truncates_no_episode(tmp_path, recovery):
    script = HarnessScript(turns=12, tool_seconds=1.0, seed=1)
    shape = job(rounds=1, prompts=4, responses=4)
    stage = EpisodeStage(tmp_path / "state.db", job=shape, script=script, seconds=55.0, recovery=recovery)

    async def outage(stage: EpisodeStage) -> None:
        await until(lambda: bool(stage.books) and stage.totals().turns > 30)
        end = asyncio.get_running_loop().time() + 48.0
        while asyncio.get_running_loop().time() < end:
            for machine in ("rollout-0", "rollout-1"):
                stage.world.kill(machine)
            await asyncio.sleep(0.4)

    played(stage, outage)
    assert stage.totals().ends == {EndState.COMPLETED: 16}


async def waiting(made: Bench) -> tuple[Any, asyncio.Task[Any]]:
    """Return an attempt whose second turn is asked for, and the client that waits for it."""
    await made.launch()
    episode = (await made.leased(journals=True)).episode
    await made.answered(made.ask(episode, [9]), [1, 2])
    return episode, await made.asked(made.ask(episode, [9, 1, 2, 3]))


async def test_a_released_attempt_waits_for_an_engine_before_a_runner(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode, asked = await waiting(made)
        await made.replica.abort(1, {KEY: 1})
        made.book.release([KEY])
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        assert not await made.book.runners.lease(ENVIRONMENT, "s", 0.0, 9, True)
        assert made.book.runners.look(made.now[0] + 1000.0) == [], "no runner is missing"
        with pytest.raises(AttemptEnded):
            await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0))
        made.now[0] += 500.0
        await made.launch(attempt=2, prefix=[1, 2])
        found = await made.leased("s", journals=True)
        assert (found.episode.attempt, found.episode.resumption) == (episode.attempt, 1)
        assert found.deadline == pytest.approx(made.now[0] + 60.0)
        assert made.book.totals.resumed == 0, "no runner was lost"
        asked.cancel()


async def test_an_attempt_that_an_engine_has_again_stays_with_its_runner(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode, asked = await waiting(made)
        await made.replica.abort(1, {KEY: 1})
        await made.launch(attempt=2, prefix=[1, 2])
        made.book.release([KEY])
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        asked.cancel()


async def test_an_attempt_leaves_no_runner_during_a_call_of_its_tools(tmp_path):
    """Another runner would execute it a second time."""
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        episode = (await made.leased(journals=True)).episode
        await made.answered(made.ask(episode, [9]), [1, 2])
        await made.replica.abort(1, {KEY: 1})
        made.book.release([KEY])
        made.book.runners.look(made.now[0])
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        asked = await made.asked(made.ask(episode, [9, 1, 2, 3]))
        made.book.runners.look(made.now[0])
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        asked.cancel()


async def test_a_runner_loses_what_no_engine_has_for_long(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode, asked = await waiting(made)
        await made.replica.abort(1, {KEY: 1})
        began = made.now[0]
        for since, kept in [(0.0, True), (SILENCE - 1, True), (SILENCE + 1, False)]:
            made.now[0] = began + since
            await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
            made.book.runners.look(made.now[0])
            assert (list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []) == kept
        asked.cancel()


async def _polled(made: Bench) -> None:
    """Poll the replica as a stage does."""
    cursor = 0
    while True:
        cursor = (await made.replica.poll(1, cursor, 60.0)).cursor
        await asyncio.sleep(0)


async def test_a_client_that_gave_up_without_an_engine_earns_nothing(tmp_path):
    """An engine has its turn again when its harness ends: its reward would say that the policy was slow."""
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode, asked = await waiting(made)
        await made.replica.abort(1, {KEY: 1})
        polled = asyncio.ensure_future(_polled(made))
        await settled()
        await made.launch(attempt=2, prefix=[1, 2])
        await settled()
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0))
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert (kept.end.state, kept.end.cause, kept.reward) == (EndState.ABORTED, AbortCause.ENGINE, None)
        for task in (asked, polled):
            task.cancel()
        await asyncio.gather(asked, polled, return_exceptions=True)
