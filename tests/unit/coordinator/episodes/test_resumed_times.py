"""Times of attempts that another runner goes on with: no moment moves, and the time between counts nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rljob_runtime.cli.episodes.stored import stored_attempts
from rljob_runtime.coordinator.episodes.episode_rows import slowest_intervals
from rljob_runtime.coordinator.store.tables.kept_episodes import kept_episode
from rljob_runtime.protocols.environments import EpisodeReport, ToolCall
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.scheduling.episodes.times import AttemptTimes, Pause
from tests.support.episode_book import KEY, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT

RECOVERIES = [Recovery.NEXT_TURN, Recovery.REPLAY, Recovery.RERUN]
TRUTH = AttemptTimes(model=18.0, outside=4.0)
"""A turn of 10 s and one of 8 s. Outside: 1 s before the first, 2 s between them, 1 s after the last."""


async def turn(made: Bench, episode: EpisodeAttempt, prompt: Sequence[int], opened: float, stored: float) -> None:
    """Ask for a turn at a moment; its answer is stored at another."""
    made.now[0] = opened
    asked = await made.asked(made.ask(episode, prompt))
    made.now[0] = stored
    made.engine.emit([5, 6])
    await made.replica.poll(1, 0, 5.0)
    await asked
    await settled()


async def paused(made: Bench, losses: int = 1) -> EpisodeAttempt:
    """Play a turn; then lose the runner. Return what the next one has, that many losses later."""
    await made.launch()
    episode = (await made.leased(journals=True)).episode
    await turn(made, episode, [1], 1001.0, 1011.0)
    for _ in range(losses):
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        made.lose_runner()
        episode = (await made.leased(journals=True)).episode
    return episode


async def ended(made: Bench, episode: EpisodeAttempt) -> float:
    """Play the rest of the attempt; return when its runner had it."""
    base = made.now[0]
    if episode.resumption and made.book.number(episode.attempt).reruns:
        await made.book.turns.turn(made.ask(episode, [1]))
    await turn(made, episode, [1, 5, 6, 2], base + 2, base + 10)
    made.now[0] = base + 11
    await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
    return base


@pytest.mark.parametrize("losses", [0, 1, 2])
@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_seconds_and_moments_are_those_with_a_runner(tmp_path, recovery, losses):
    async with bench(tmp_path, recovery=recovery) as made:
        base = await ended(made, await paused(made, losses))
        assert base == 1011.0 + 31.0 * losses
        attempt = made.book.finished(KEY)
        assert (attempt.times, attempt.began) == (TRUTH, 1000.0)
        rows = [(one.name, one.since, one.until) for one in slowest_intervals([attempt], 0.0)]
        assert ("model", 1001.0, 1011.0) in rows
        assert rows[-3:] == [
            ("outside", base, base + 2), ("model", base + 2, base + 10), ("outside", base + 10, base + 11)
        ]  # fmt: skip
        kept = kept_episode(made.store.turns._db, KEY)
        assert kept.started == 1000.0
        assert [(one.opened, one.stored, one.outside_seconds, one.model_seconds) for one in kept.turns] == [
            (1001.0, 1011.0, 1.0, 10.0), (base + 2, base + 10, 2.0, 8.0)
        ]  # fmt: skip
    (stored,) = stored_attempts(tmp_path)
    assert (stored.times, stored.started) == (TRUTH, 1000.0)


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_the_next_coordinator_knows_pauses_and_deadline(tmp_path, recovery):
    async with bench(tmp_path, recovery=recovery) as made:
        episode = await paused(made)
        deadline = made.book.number(episode.attempt).deadline
    async with bench(tmp_path, recovery=recovery) as made:
        made.now[0] = 1042.0
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        attempt = made.book.number(episode.attempt)
        assert (attempt.began, attempt.pauses, attempt.deadline) == (1000.0, [Pause(1011.0, 1042.0)], deadline)
        await made.launch(attempt=2, prefix=[5, 6])
        await ended(made, episode)
        assert made.book.finished(KEY).times == TRUTH


async def test_a_turn_under_way_counts_while_there_is_a_runner(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        episode = (await made.leased(journals=True)).episode
        made.now[0] = 1001.0
        asked = await made.asked(made.ask(episode, [1]))
        made.now[0] = 1005.0
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        made.lose_runner()
        assert made.now[0] == 1036.0
        episode = (await made.leased(journals=True)).episode
        made.now[0] = 1040.0
        made.engine.emit([5, 6])
        await made.replica.poll(1, 0, 5.0)
        await settled()
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert made.book.finished(KEY).times == AttemptTimes(model=8.0, outside=1.0)
        (only,) = kept_episode(made.store.turns._db, KEY).turns
        assert (only.opened, only.stored, only.model_seconds) == (1001.0, 1040.0, 8.0)
        asked.cancel()


async def test_a_row_of_the_timeline_shows_when_tools_ran(tmp_path):
    """Also of what a former coordinator stored. The rest without an open turn is the harness's."""
    truth = [("outside", 1000.0, 1001.0), ("model", 1001.0, 1010.0), ("outside", 1010.0, 1012.0)]
    truth += [("tools", 1012.0, 1014.0), ("outside", 1014.0, 1015.0), ("model", 1015.0, 1016.0)]
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        assignment = await made.leased(journals=True)
        assert assignment.stateless
        episode = assignment.episode
        await turn(made, episode, [1], 1001.0, 1010.0)
        (node,) = made.book.number(episode.attempt).recorded
        for at, place, seconds in ((1013.0, 0, 1.0), (1014.0, 1, 2.0)):
            made.now[0] = at
            await made.book.runners.called(ENVIRONMENT, "r", episode, ToolCall(node, place, "add", "{}", "5", seconds))
        await turn(made, episode, [1, 5, 6, 2], 1015.0, 1016.0)
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert rows(made) == truth
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.book.load([KEY])
        assert rows(made) == truth


def rows(made: Bench) -> list[tuple[str, float, float]]:
    return [(one.name, one.since, one.until) for one in slowest_intervals([made.book.finished(KEY)], 0.0)]
