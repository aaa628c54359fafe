"""Another runner runs the program of an attempt again: from its beginning, with the turns that are stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rljob_runtime.audit.lineage import audit_episodes
from rljob_runtime.protocols.environments import Assignment, EpisodeReport
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt
from rljob_runtime.scheduling.episodes.ends import AbortCause, EpisodeEnd
from rljob_runtime.scheduling.episodes.resumption import Recovery
from tests.support.episode_book import KEY, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT

RERUN = Recovery.RERUN
FIRST, SECOND = [1], [1, 5, 6, 2]
"""Prompts of a program that is answered with 5 and 6."""


async def begun(made: Bench) -> EpisodeAttempt:
    """Launch the response; return its attempt, whose program has two answers."""
    await made.launch()
    episode = (await made.leased("r", journals=True)).episode
    await made.answered(made.ask(episode, FIRST), [5, 6])
    await made.answered(made.ask(episode, SECOND), [7])
    return episode


async def lost(made: Bench) -> Assignment:
    """Let the runner be silent for too long; return what the next one has."""
    made.lose_runner()
    return await made.leased("s", journals=True)


async def done(made: Bench, episode: EpisodeAttempt, runner: str = "s") -> EpisodeEnd | None:
    await made.book.runners.done(ENVIRONMENT, runner, episode, EpisodeReport(reward=1.0))
    return made.store.turns.newest([KEY])[KEY].end


def findings(path: Path) -> list[str]:
    """What the audit says about programs. The store of these tests has no weight versions, which it says too."""
    with closing(sqlite3.connect(path / "state.db")) as db:
        lineage = audit_episodes(db, asynchronous=True)
    assert lineage is not None
    return [one.what for one in lineage.findings if "program" in one.what]


async def test_the_next_runner_has_all_of_the_time_and_the_stored_turns(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        episode = await begun(made)
        made.now[0] += 20
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        found = await lost(made)
        assert found.episode == EpisodeAttempt(KEY, episode.attempt, 1)
        assert (found.resume, found.deadline) == (None, made.now[0] + 60.0)
        for prompt, answer in ((FIRST, [5, 6]), (SECOND, [7])):
            turn = await made.book.turns.turn(made.ask(found.episode, prompt))
            assert (list(turn.token_ids), turn.replayed) == (answer, True)
        await made.answered(made.ask(found.episode, [*SECOND, 7, 2]), [8])
        end = await done(made, found.episode)
        assert end is not None
        assert end.cause is None
        totals = made.book.totals
        assert (totals.resumed, totals.replayed_turns, totals.turns, totals.retries) == (1, 2, 3, 0)
    assert findings(tmp_path) == []


async def test_a_turn_under_way_is_the_next_programs(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        await made.launch()
        episode = (await made.leased("r", journals=True)).episode
        asked = await made.asked(made.ask(episode, FIRST))
        found = await lost(made)
        again = await made.asked(made.ask(found.episode, FIRST))
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert (await again).token_ids == (await asked).token_ids == [5]
        assert made.book.totals.turns == 1
        assert (await done(made, found.episode)).cause is None
    assert findings(tmp_path) == []


@pytest.mark.parametrize(("handed_back", "cause"), [(False, AbortCause.ENVIRONMENT), (True, AbortCause.RUNNER_LEFT)])
async def test_a_program_that_asks_for_something_else_ends_its_attempt(tmp_path, handed_back, cause):
    async with bench(tmp_path, recovery=RERUN) as made:
        episode = await begun(made)
        if handed_back:
            await made.hand_back(episode)
            found = await made.leased("s", journals=True)
        else:
            found = await lost(made)
        with pytest.raises(AttemptEnded, match="asks for something else than turn"):
            await made.book.turns.turn(made.ask(found.episode, [2]))
        await settled()
        assert made.book.totals.aborts == {cause: 1}
        assert made.book.totals.refused_replays == 1


async def test_a_hand_back_that_no_other_runner_goes_on_with_is_no_failure(tmp_path):
    """During an update of runners' images, one of an earlier package asks first."""
    async with bench(tmp_path, recovery=RERUN) as made:
        episode = await begun(made)
        await made.hand_back(episode)
        assert list(await made.book.runners.lease(ENVIRONMENT, "old", 0.0)) == []
        assert made.book.totals.aborts == {AbortCause.RUNNER_LEFT: 1}


async def test_a_program_that_was_lost_after_its_deadline_runs_again(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        episode = await begun(made)
        made.now[0] += 65
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        made.now[0] += 24
        made.book.runners.look(made.now[0])
        await made.hand_back(episode)
        found = await made.leased("s", journals=True)
        assert (found.episode.resumption, found.deadline) == (1, made.now[0] + 60.0)


async def test_a_program_that_repeats_a_part_of_its_turns_has_no_reward(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        await begun(made)
        found = await lost(made)
        await made.book.turns.turn(made.ask(found.episode, FIRST))
        end = await done(made, found.episode)
        assert end is not None
        assert end.cause is AbortCause.ENVIRONMENT
        assert made.store.turns.newest([KEY])[KEY].reward is None
        assert made.book.totals.refused_replays == 1


async def test_the_next_coordinator_knows_what_was_repeated(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        await begun(made)
        found = await lost(made)
        await made.book.turns.turn(made.ask(found.episode, FIRST))
    async with bench(tmp_path, recovery=RERUN) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "s", [found.episode])) == []
        attempt = made.book.number(found.episode.attempt)
        assert attempt is not None
        assert len(attempt.episode.unrepeated) == 1
        await made.book.turns.turn(made.ask(found.episode, SECOND))
        assert attempt.episode.unrepeated == ()
        assert (await done(made, found.episode)).cause is None
    assert findings(tmp_path) == []


async def test_the_audit_finds_a_turn_that_the_last_program_did_not_ask_for(tmp_path):
    async with bench(tmp_path, recovery=RERUN) as made:
        episode = await begun(made)
        await done(made, episode, "r")
    assert findings(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        db.execute("UPDATE episodes SET resumption = 1")
        db.commit()
    assert findings(tmp_path) == [
        f"node {node} of attempt 1 was asked for by the program of resumption 0, and the program of resumption 1 ended "
        "the attempt"
        for node in (2, 4)
    ]
