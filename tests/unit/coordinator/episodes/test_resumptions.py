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
from rljob_runtime.coordinator.episodes import resumptions, runner_service
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.protocols.environments import EpisodeReport, Resume, ToolCall
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.resumption import MOST_RESUMPTIONS, Recovery
from rljob_runtime.simulator.peers.harness import Fault, HarnessScript
from tests.support.episode_book import KEY, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job

SILENCE = RunnerRules().silence
CALL = ToolCall(2, 0, "add", '{"a": 2}', "5")


async def begun(made: Bench) -> EpisodeAttempt:
    """Launch the response; return its attempt, whose first turn is answered."""
    await made.launch()
    episode = (await made.leased(journals=True)).episode
    await made.answered(made.ask(episode, [1]), [5, 6])
    return episode


async def called(made: Bench, episode: EpisodeAttempt, call: ToolCall = CALL, runner: str = "r") -> None:
    await made.book.runners.called(ENVIRONMENT, runner, episode, call)


@pytest.mark.parametrize("recovery", [Recovery.NEXT_TURN, Recovery.REPLAY])
async def test_the_next_runner_has_the_newest_request_and_all_calls(tmp_path, recovery):
    async with bench(tmp_path, recovery=recovery) as made:
        episode = await begun(made)
        await called(made, episode)
        await called(made, episode)
        made.lose_runner()
        found = await made.leased("s", journals=True)
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
        made.lose_runner()
        assert not await made.book.runners.lease(ENVIRONMENT, "s", 0.0, 1, True)
        await settled()
        end = made.store.turns.newest([KEY])[KEY].end
        assert end is not None
        assert end.reason == (
            "environment: another runner cannot go on with it: its turns and calls of tools are more than 3 bytes"
        )


async def test_an_attempt_has_no_more_calls_than_can_be_handed_over(tmp_path, monkeypatch):
    """Its runner may have a key of anybody, and the store is the job's."""
    monkeypatch.setattr(resumptions, "MOST_RESUME_BYTES", 30)
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        call = ToolCall(2, 0, "calculate", "{}", "4" * 20)
        await made.book.runners.called(ENVIRONMENT, "r", episode, call)
        with pytest.raises(AttemptEnded, match="its calls of tools are too long"):
            await made.book.runners.called(ENVIRONMENT, "r", episode, replace(call, place=1))
        await settled()
        assert made.store.tool_calls.of(episode.attempt, 1000) == [call]


async def test_a_program_has_no_calls_that_its_runner_stores(tmp_path):
    async with bench(tmp_path, recovery=Recovery.RERUN) as made:
        episode = await begun(made)
        with pytest.raises(AttemptEnded, match="a program calls its own tools"):
            await called(made, episode)


async def test_one_answer_has_no_more_of_lost_attempts_than_can_be_handed_over(tmp_path, monkeypatch):
    """The others wait for the next runner: none is lost."""
    monkeypatch.setattr(runner_service, "MOST_RESUME_BYTES", 12)
    keys = [KEY, replace(KEY, sample=7), replace(KEY, sample=8)]
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        for key in keys:
            await made.launch(key=key)
            episode = (await made.leased(journals=True)).episode
            await made.answered(made.ask(episode, [1]), [5, 6])
            await called(made, episode)
        made.lose_runner()
        leased = [await made.book.runners.lease(ENVIRONMENT, "s", 0.0, 64, True) for _ in range(3)]
        assert [len(found) for found in leased] == [2, 1, 0]
        assert {one.episode.key for found in leased for one in found} == set(keys)


async def test_the_runner_that_was_lost_has_no_part_in_it_any_more(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        made.lose_runner()
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        resumed = (await made.leased("r", journals=True)).episode
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode, resumed])) == [episode]
        for late in (
            made.book.turns.turn(made.ask(episode, [1, 5, 6, 2])),
            made.book.turns.history(episode),
            called(made, episode),
            made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0)),
        ):
            with pytest.raises(AttemptEnded):
                await asyncio.wait_for(late, 60.0)
        await made.book.runners.done(ENVIRONMENT, "r", resumed, EpisodeReport(reward=1.0))
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0


async def test_a_turn_under_way_belongs_to_the_next_runner(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        episode = (await made.leased(journals=True)).episode
        asked = await made.asked(made.ask(episode, [1]))
        made.lose_runner()
        found = await made.leased("s", journals=True)
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
        made.lose_runner()
        resumed = (await made.leased("s", journals=True)).episode
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
        made.lose_runner()
        resumed = (await made.leased("s", journals=True)).episode
        await called(made, resumed, runner="s")
        await made.answered(made.ask(resumed, [1, 5, 6, 2]), [8])
        assert made.book.totals.replayed_calls == 1
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("SELECT executions, replays, resumption FROM tool_calls").fetchall() == [(1, 1, 1)]


async def test_tools_that_answer_otherwise_after_a_hand_back_are_no_failure(tmp_path):
    async with bench(tmp_path, recovery=Recovery.REPLAY) as made:
        episode = await begun(made)
        await called(made, episode)
        await made.hand_back(episode)
        resumed = (await made.leased("s", journals=True)).episode
        with pytest.raises(AttemptEnded, match="observes something else"):
            await called(made, resumed, replace(CALL, observation="6"), "s")
        assert made.book.totals.aborts == {AbortCause.RUNNER_LEFT: 1}


async def test_the_next_coordinator_knows_an_attempts_runner_and_calls(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        await called(made, episode)
        made.lose_runner()
        resumed = (await made.leased("s", journals=True)).episode
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "s", [resumed])) == []
        with pytest.raises(AttemptEnded, match="was executed again"):
            await called(made, resumed, runner="s")


async def test_what_is_handed_back_goes_on_until_there_were_many(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        await made.launch()
        for resumption in range(MOST_RESUMPTIONS + 1):
            episode = (await made.leased(journals=True)).episode
            assert episode.resumption == resumption
            await made.hand_back(episode)
        assert made.book.totals.aborts == {AbortCause.RUNNER_LEFT: 1}
        assert made.book.totals.resumed == MOST_RESUMPTIONS


async def test_an_attempt_on_its_way_to_a_runner_is_neither_silent_nor_late(tmp_path):
    """Its prompts are read slowly, and the time without a runner is not its runner's."""
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        attempt = made.book.number((await begun(made)).attempt)
        made.lose_runner()
        made.now[0] += 1000
        made.access.free.clear()
        asking = asyncio.ensure_future(made.leased("s", journals=True))
        await settled()
        made.lose_runner()
        assert list(await made.book.runners.lease(ENVIRONMENT, "other", 0.0, 1, True)) == []
        made.access.free.set()
        found = await asking
        assert (found.episode.resumption, attempt.id, attempt.episode.end) == (1, found.episode, None)
        made.lose_runner()
        assert (await made.leased("other", journals=True)).episode.resumption == 2


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


@pytest.mark.parametrize("recovery", list(Recovery))
async def test_a_runner_of_an_earlier_package_goes_on_with_no_attempt(tmp_path, recovery):
    async with bench(tmp_path, recovery=recovery) as made:
        await begun(made)
        made.lose_runner()
        assert list(await made.book.runners.lease(ENVIRONMENT, "old", 0.0)) == []
        assert made.book.totals.aborts == {AbortCause.ENVIRONMENT: 1}
        await made.launch(key=replace(KEY, sample=0))
        assert (await made.leased("old")).episode.resumption == 0
        made.lose_runner()
        assert made.book.totals.resumed == 1
        assert made.book.totals.aborts == {AbortCause.ENVIRONMENT: 2}


async def test_a_call_of_a_turn_that_is_not_stored_ends_the_attempt(tmp_path):
    async with bench(tmp_path, recovery=Recovery.NEXT_TURN) as made:
        episode = await begun(made)
        with pytest.raises(AttemptEnded, match="call 0 of turn 9, and no such turn is stored"):
            await called(made, episode, ToolCall(9, 0, "add", "{}", "5"))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("recovery", list(Recovery))
def test_a_job_that_loses_runners_trains_and_repeats_no_stored_call(tmp_path, mode, recovery):
    script = HarnessScript(faults=((Fault.CRASH, 100), (Fault.CRASH_AFTER_CALL, 200)), seed=1, differing=200)
    stage = EpisodeStage(
        tmp_path / "state.db", job=job(rounds=3, prompts=3, responses=3, mode=mode), script=script, recovery=recovery
    )
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    totals, seen = stage.totals(), stage.runners.counts
    assert totals.resumed >= seen[Fault.CRASH_AFTER_CALL] > 0
    assert totals.calls_executed_twice == 0
    assert (totals.tool_calls > 0) == (recovery is not Recovery.RERUN)
    assert (totals.replayed_calls > 0) == (recovery is Recovery.REPLAY)
    assert (totals.replayed_turns > 0) == (recovery is Recovery.RERUN)
    assert (totals.refused_replays > 0) == (recovery is not Recovery.NEXT_TURN)
    if recovery is Recovery.NEXT_TURN:
        assert not totals.aborts.keys() - {AbortCause.NOT_NEEDED}, "an attempt outlives its runner"
    with closing(sqlite3.connect(stage.path)) as db:
        lineage = audit_episodes(db, mode is Mode.ASYNCHRONOUS)
    assert lineage is not None
    assert lineage.findings == ()
