"""Another runner goes on with an attempt: at its next turn, or after it executed the calls of tools again."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.audit.lineage import audit_episodes
from rljob_runtime.coordinator.episodes import resumptions
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, FailedPart, Resume, ToolCall
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.resumption import MOST_RESUMPTIONS, Recovery
from rljob_runtime.simulator.peers.harness import Fault, HarnessLaw
from tests.support.episode_book import KEY, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job

SILENCE = RunnerRules().silence
CALL = ToolCall(2, 0, "add", '{"a": 2}', "5")


async def leased(made: Bench, runner: str = "r", journals: bool = True) -> Assignment:
    (found,) = await made.book.runners.lease(ENVIRONMENT, runner, 1.0, 1, journals)
    return found


async def begun(made: Bench) -> EpisodeAttempt:
    """Launch the response; return its attempt, whose first turn is answered."""
    await made.launch()
    episode = (await leased(made)).episode
    await made.answered(made.ask(episode, [1]), [5, 6])
    return episode


async def called(made: Bench, episode: EpisodeAttempt, call: ToolCall = CALL, runner: str = "r") -> None:
    await made.book.runners.called(ENVIRONMENT, runner, episode, call)


def lose(made: Bench) -> None:
    """Let the runner be silent for too long."""
    made.now[0] += SILENCE + 1
    made.book.runners.look(made.now[0])


@pytest.mark.parametrize("recovery", list(Recovery))
async def test_the_next_runner_has_the_newest_request_and_all_calls(tmp_path, recovery):
    async with bench(tmp_path, recovery=recovery) as made:
        episode = await begun(made)
        await called(made, episode)
        await called(made, episode)
        lose(made)
        found = await leased(made, "s")
        assert found.episode == EpisodeAttempt(KEY, episode.attempt, 1)
        assert found.resume == Resume(b"{}", [CALL], recovery is Recovery.REPLAY)
        totals = made.book.totals
        assert (totals.tool_calls, totals.resumed, totals.attempts) == (1, 1, 1)
        assert found.deadline == pytest.approx(1000.0 + 60.0 + SILENCE + 1), "the time without a runner is not its own"


async def test_an_attempt_of_too_many_bytes_to_hand_over_ends_and_says_so(tmp_path, monkeypatch):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        await called(made, episode)
        monkeypatch.setattr(resumptions, "MOST_RESUME_BYTES", 3)
        lose(made)
        assert not await made.book.runners.lease(ENVIRONMENT, "s", 0.0, 1, True)
        await settled()
        end = made.store.turns.newest([KEY])[KEY].end
        assert end is not None
        assert end.reason == (
            "environment: another runner cannot go on with it: its turns and calls of tools are 11 bytes; 3 can be "
            "handed over"
        )


async def test_the_runner_that_was_lost_has_no_part_in_it_any_more(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        lose(made)
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        resumed = (await leased(made, "r")).episode
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode, resumed])) == [episode]
        for late in (
            made.book.turns.turn(made.ask(episode, [1, 5, 6, 2])),
            made.book.turns.history(episode),
            called(made, episode),
            made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0)),
        ):
            with pytest.raises(AttemptEnded):
                await asyncio.wait_for(late, 5.0)
        await made.book.runners.done(ENVIRONMENT, "r", resumed, EpisodeReport(reward=1.0))
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0


async def test_a_turn_under_way_belongs_to_the_next_runner(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        episode = (await leased(made)).episode
        asked = await made.asked(made.ask(episode, [1]))
        lose(made)
        found = await leased(made, "s")
        assert found.resume == Resume(b"{}", [], False)
        again = await made.asked(made.ask(found.episode, [1], retry=True))
        made.engine.emit([7])
        await made.replica.poll(1, 0, 5.0)
        assert (await again).token_ids == (await asked).token_ids == [7]
        assert made.book.totals.turns == 1


@pytest.mark.parametrize(
    ("recovery", "seen", "why"),
    [
        (Recovery.REPLAY, "6", "observes something else"),
        (Recovery.NEXT_TURN, "5", "was executed again, and its tools keep nothing between calls"),
    ],
)
async def test_a_call_that_must_not_be_there_again_ends_the_attempt(tmp_path, recovery, seen, why):
    async with bench(tmp_path, recovery=recovery) as made:
        episode = await begun(made)
        await called(made, episode)
        lose(made)
        resumed = (await leased(made, "s")).episode
        with pytest.raises(AttemptEnded, match=why):
            await called(made, resumed, ToolCall(2, 0, "add", '{"a": 2}', seen), "s")
        await settled()
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert (kept.end.cause, kept.reward) == (AbortCause.ENVIRONMENT, None)
        twice = recovery is Recovery.NEXT_TURN
        assert (made.book.totals.calls_executed_twice, made.book.totals.refused_replays) == (twice, not twice)
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        lineage = audit_episodes(db, asynchronous=True)
    assert lineage is not None
    assert sum("executed 2 times" in one.what for one in lineage.findings) == twice


async def test_a_replay_that_observes_the_same_goes_on(tmp_path):
    async with bench(tmp_path, recovery=Recovery.REPLAY) as made:
        episode = await begun(made)
        await called(made, episode)
        lose(made)
        resumed = (await leased(made, "s")).episode
        await called(made, resumed, runner="s")
        await made.answered(made.ask(resumed, [1, 5, 6, 2]), [8])
        assert made.book.totals.replayed_calls == 1
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("SELECT executions, replays, resumption FROM tool_calls").fetchall() == [(1, 1, 1)]


async def test_the_next_coordinator_knows_who_has_the_attempt_and_what_was_called(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        await called(made, episode)
        lose(made)
        resumed = (await leased(made, "s")).episode
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "s", [resumed])) == []
        with pytest.raises(AttemptEnded, match="was executed again"):
            await called(made, resumed, runner="s")


async def test_what_is_handed_back_goes_on_until_there_were_many(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        for resumption in range(MOST_RESUMPTIONS + 1):
            episode = (await leased(made)).episode
            assert episode.resumption == resumption
            report = EpisodeReport(failed=FailedPart.RUNNER, detail="it was told to end")
            await made.book.runners.done(ENVIRONMENT, "r", episode, report)
        assert made.book.totals.aborts == {AbortCause.RUNNER_LEFT: 1}
        assert made.book.totals.resumed == MOST_RESUMPTIONS


async def test_an_attempt_on_its_way_to_a_runner_is_neither_silent_nor_late(tmp_path):
    """Its prompts are read slowly, and the time without a runner is not its runner's."""
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        attempt = made.book.number((await begun(made)).attempt)
        lose(made)
        made.now[0] += 1000
        made.access.free.clear()
        asking = asyncio.ensure_future(leased(made, "s"))
        await settled()
        lose(made)
        assert list(await made.book.runners.lease(ENVIRONMENT, "other", 0.0, 1, True)) == []
        made.access.free.set()
        found = await asking
        assert (found.episode.resumption, attempt.id, attempt.episode.end) == (1, found.episode, None)
        lose(made)
        assert (await leased(made, "other")).episode.resumption == 2


async def test_an_attempt_that_ends_on_its_way_to_a_runner_does_not_arrive(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        made.access.free.clear()
        asking = asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, "r", 1.0, 1, True))
        await settled()
        (attempt,) = made.book.numbers()
        made.book.end(attempt, attempt.episode.abort(AbortCause.NOT_NEEDED, "its prompt has ended"))
        made.access.free.set()
        assert list(await asking) == []


async def test_a_runner_that_reports_no_calls_goes_on_with_no_attempt_of_others(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await begun(made)
        lose(made)
        assert list(await made.book.runners.lease(ENVIRONMENT, "old", 0.0)) == []
        assert made.book.totals.aborts == {AbortCause.ENVIRONMENT: 1}
        await made.launch(key=replace(KEY, sample=0))
        assert (await leased(made, "old", journals=False)).episode.resumption == 0
        lose(made)
        assert made.book.totals.resumed == 1
        assert made.book.totals.aborts == {AbortCause.ENVIRONMENT: 2}


async def test_a_call_of_a_turn_that_is_not_stored_ends_the_attempt(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        with pytest.raises(AttemptEnded, match="call 0 of turn 9, and no such turn is stored"):
            await called(made, episode, ToolCall(9, 0, "add", "{}", "5"))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("recovery", list(Recovery))
def test_a_job_whose_runners_are_lost_trains_and_executes_no_stored_call_twice(tmp_path, mode, recovery):
    law = HarnessLaw(faults=((Fault.CRASH, 100), (Fault.CRASH_AFTER_CALL, 200)), seed=1, differing=200)
    stage = EpisodeStage(
        tmp_path / "state.db", job=job(rounds=3, prompts=3, responses=3, mode=mode), law=law, recovery=recovery
    )
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    totals, seen = stage.totals(), stage.runners.counts
    assert totals.resumed >= seen[Fault.CRASH_AFTER_CALL] > 0
    assert totals.tool_calls > 0
    assert totals.calls_executed_twice == 0
    replays = recovery is Recovery.REPLAY
    assert (totals.replayed_calls > 0) == (totals.refused_replays > 0) == replays
    if not replays:
        assert not totals.aborts.keys() - {AbortCause.NOT_NEEDED}, "an attempt outlives its runner"
    with closing(sqlite3.connect(stage.path)) as db:
        lineage = audit_episodes(db, mode is Mode.ASYNCHRONOUS)
    assert lineage is not None
    assert lineage.findings == ()
