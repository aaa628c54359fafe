"""The episode book, where two calls meet: each test forces the order in which they do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest

from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.protocols import GenerateRequest
from rljob_runtime.protocols.environments import EpisodeReport, FailedPart, ToolCall
from rljob_runtime.protocols.trajectory import Sampling, TrajectoryKey
from rljob_runtime.protocols.turns import AttemptEnded
from rljob_runtime.scheduling.episodes.ends import AbortCause
from tests.support.episode_book import KEY, STOP, Bench, StandInEngine, bench, settled
from tests.support.episode_job import ENVIRONMENT


async def test_concurrent_calls_adopt_a_former_coordinators_attempt_once(tmp_path):
    """A runner's heartbeat and its client's turn arrive together, as soon as the coordinator answers."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
    async with bench(tmp_path) as made:
        made.access.free.clear()
        beating = asyncio.ensure_future(made.book.runners.heartbeat(ENVIRONMENT, "r", [episode]))
        asking = asyncio.ensure_future(made.book.turns.turn(made.ask(episode, [1], retry=True)))
        await settled()
        made.access.free.set()
        assert list(await beating) == []
        assert list((await asking).token_ids) == [5, 6]
        await made.launch(attempt=2, prefix=(5,))
        await made.answered(made.ask(episode, [1, 5, 6, 2]), [7])
        assert made.store.turns.newest([KEY])[KEY].end is None


@contextlib.asynccontextmanager
async def late(made: Bench, *, journal: bool) -> AsyncIterator[None]:
    """The store does what it is asked, but answers the first call of the journal, or of others, after the body."""
    do, answered = made.access.do, asyncio.Event()

    async def hold(work):
        is_first = isinstance(work, partial) is journal
        if is_first:
            made.access.do = do
        result = await do(work)
        if is_first:
            await answered.wait()
        return result

    made.access.do = hold
    try:
        yield
    finally:
        made.access.do = do
        answered.set()


CALL = ToolCall(2, 0, "add", "{}", "5")


async def test_an_attempt_is_not_found_open_before_its_end_is_stored(tmp_path):
    """Its response is not needed any more, and its runner reports a call before the store has that."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        made.book.cut([KEY.prompt])
        with pytest.raises(AttemptEnded):
            # Not `wait_for`: as a task of its own the call would come after the journal.
            async with asyncio.timeout(60.0):
                await made.book.runners.called(ENVIRONMENT, "r", episode, CALL)
        await settled()
        assert made.store.turns.newest([KEY])[KEY].end.cause is AbortCause.NOT_NEEDED


async def test_an_attempt_that_ended_while_the_store_was_read_is_not_found_open(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
    async with bench(tmp_path) as made:
        async with late(made, journal=False):
            reading = asyncio.ensure_future(made.book.load([KEY]))
            await settled()
            await made.book.load([KEY])
            made.book.cut([KEY.prompt])
            await settled()
        await reading
        assert made.book.number(episode.attempt) is None
        assert made.book.totals.aborts[AbortCause.NOT_NEEDED] == 1


async def test_a_late_call_of_a_former_attempt_does_not_end_the_new_one(tmp_path):
    async with bench(tmp_path) as made:
        former = await made.begun()
        made.book.cut([KEY.prompt])
        await settled()
        async with late(made, journal=True):
            launching = asyncio.ensure_future(made.launch(attempt=2))
            await settled()
            with pytest.raises(AttemptEnded):
                await made.book.runners.called(ENVIRONMENT, "r", former, CALL)
        await launching
        episode = (await made.leased()).episode
        assert episode != former
        await made.answered(made.ask(episode, [1]), [5])
        assert made.store.turns.newest([KEY])[KEY].end is None


async def test_a_turn_that_arrives_while_the_end_is_stored_is_no_answer(tmp_path):
    """The harness reached its deadline in a turn. The engine ends the turn before the store has the end."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        cursor = (await made.replica.poll(1, 0, 0.0)).cursor
        polling = asyncio.ensure_future(made.replica.poll(1, cursor, 60.0))
        await settled()
        made.access.free.clear()
        ending = asyncio.ensure_future(made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0)))
        await settled()
        made.engine.emit([6])
        await polling
        await settled()
        made.access.free.set()
        await ending
        with pytest.raises(AttemptEnded):
            await asked
        assert [(one.token_ids, one.finish_reason) for one in await made.deltas()] == [((), STOP)]
        assert len(made.store.turns.history(episode.attempt)) == made.book.totals.turns == 1
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.reward == 1.0, "an engine generated the turn, so the deadline is the harness's doing"


async def test_a_retry_of_a_turn_that_is_complete_but_not_stored_waits_for_it(tmp_path):
    """The client's connection broke just then."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        made.access.free.clear()
        made.engine.emit([5, 6])
        await made.replica.poll(1, 0, 5.0)
        retrying = await made.asked(made.ask(episode, [1], retry=True))
        assert not asked.done()
        assert not retrying.done(), "it is not stored yet"
        made.access.free.set()
        answer, again = await asked, await retrying
        assert (list(again.token_ids), again.replayed) == ([5, 6], True)
        assert again.node == answer.node
        assert len(made.store.turns.history(episode.attempt)) == 1


@contextlib.asynccontextmanager
async def launching(made: Bench, *, reads: bool, attempt: int = 1) -> AsyncIterator[None]:
    """The response is launched, and the store answers the launch's read, or its write, after the body."""
    async with late(made, journal=not reads):
        submitting = asyncio.ensure_future(made.launch(attempt))
        await settled()
        assert not submitting.done()
        yield
    await submitting
    await settled()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("by", ["drop", "cut"])
async def test_a_response_that_is_dropped_while_it_is_launched_is_not_begun(tmp_path, by, reads):
    async with bench(tmp_path) as made:
        async with launching(made, reads=reads):
            getattr(made.book, by)([KEY.prompt])
        assert not made.book.numbers()
        assert await made.book.runners.lease(ENVIRONMENT, "r", 0.0) == ()
        assert (await made.replica.poll(1, 0, 0.0)).outside == 0
        kept = made.store.turns.newest([KEY])
        assert [one.end.cause for one in kept.values()] == ([] if reads else [AbortCause.NOT_NEEDED])
        await made.launch(attempt=2)
        await made.answered(made.ask((await made.leased()).episode, [1]), [5])


@pytest.mark.parametrize("reads", [True, False])
async def test_a_prompt_redrawn_while_its_launch_is_dropped_begins_once(tmp_path, reads):
    async with bench(tmp_path) as made:
        async with launching(made, reads=reads):
            made.book.drop([KEY.prompt])
            again = asyncio.ensure_future(made.launch(attempt=2))
            await settled()
        await again
        episode = (await made.leased()).episode
        assert await made.book.runners.lease(ENVIRONMENT, "r", 0.0) == ()
        await made.answered(made.ask(episode, [1]), [5])
        assert [one.lease for one in made.book.numbers()] == [2]


async def test_a_former_coordinators_attempt_dropped_during_its_read_ends(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
    async with bench(tmp_path) as made:
        async with launching(made, reads=True, attempt=2):
            made.book.drop([KEY.prompt])
        assert not made.book.numbers()
        assert made.store.turns.newest([KEY])[KEY].end.cause is AbortCause.NOT_NEEDED


@pytest.mark.parametrize("reads", [True, False])
async def test_a_response_stopped_during_launch_waits_for_another_replica(tmp_path, reads):
    async with bench(tmp_path) as made:
        async with launching(made, reads=reads):
            await made.replica.abort(1, {KEY: 1})
        assert (await made.replica.poll(1, 0, 0.0)).outside == 0
        assert not await made.book.runners.lease(ENVIRONMENT, "r", 0.0), "its runner would wait with it"
        await made.launch(attempt=2)
        episode = (await made.leased()).episode
        asked = await made.asked(made.ask(episode, [1]))
        assert len(made.engine.requests) == 1
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [5]
        assert made.book.totals.attempts == 1


@pytest.mark.parametrize("by", ["drop", "cut"])
async def test_a_cut_keeps_an_ended_attempt_that_is_read(tmp_path, by):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
    async with bench(tmp_path) as made:
        async with late(made, journal=False):
            reading = asyncio.ensure_future(made.book.load([KEY]))
            await settled()
            getattr(made.book, by)([KEY.prompt])
        await reading
        assert (made.book.finished(KEY) is not None) == (by == "cut")
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0


def another(made: Bench, lease: int, *more: TrajectoryKey) -> tuple[EpisodeReplica, asyncio.Task[None]]:
    """Launch the response at another replica, with more responses. Return it, and its submit."""
    replica = EpisodeReplica(StandInEngine(f"rollout-{lease}/replica-0"), made.book)  # type: ignore[arg-type]
    requests = [GenerateRequest(key, lease, (9,), Sampling(64), 1) for key in (KEY, *more)]
    return replica, asyncio.ensure_future(replica.submit(1, requests))


async def test_an_older_launch_that_begins_late_does_not_replace_a_newer_one(tmp_path):
    """Two machines were lost while the store was busy: the third launch goes on with what the first has begun."""
    async with bench(tmp_path) as made:
        do, answers = made.access.do, [asyncio.Event(), asyncio.Event()]
        waiting = iter(answers)

        async def hold(work):
            result = await do(work)
            if isinstance(work, partial):
                await next(waiting).wait()
            return result

        made.access.do = hold
        launches = []
        for lease in (1, 2):
            launches.append(another(made, lease)[1])
            await settled()
        answers[0].set()
        await settled()
        third, submitting = another(made, 3)
        await submitting
        answers[1].set()
        await asyncio.gather(*launches)
        assert [(one.lease, one.holder) for one in made.book.numbers()] == [(3, third)]


async def test_an_older_launch_that_still_reads_replaces_no_newer_one(tmp_path):
    async with bench(tmp_path) as made:
        await made.begun()
        async with late(made, journal=False):
            _, reading = another(made, 2, replace(KEY, sample=KEY.sample + 1))
            await settled()
            newer, submitting = another(made, 3)
            await submitting
        await reading
        assert [(one.lease, one.holder) for one in made.book.numbers() if one.key == KEY] == [(3, newer)]


async def test_a_stop_of_an_earlier_launch_leaves_the_one_that_arrives(tmp_path):
    async with bench(tmp_path) as made:
        async with launching(made, reads=False, attempt=2):
            await made.replica.abort(1, {KEY: 1})
        asked = await made.asked(made.ask((await made.leased()).episode, [1]))
        assert len(made.engine.requests) == 1
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [5]


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_harness_ending_while_no_engine_runs_its_turn_has_no_reward(tmp_path, stopped):
    """Its response waits for another replica, or its replica was lost. Then the deadline is our doing."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        if stopped:
            await made.replica.abort(1, {KEY: 1})
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0))
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert (kept.end.cause, kept.reward) == (AbortCause.ENGINE, None)
        with pytest.raises(AttemptEnded):
            await asked


async def test_a_lease_whose_runner_leaves_goes_to_the_next_one(tmp_path):
    """The runner left while its answer was made: no harness has begun, so nothing has failed."""
    async with bench(tmp_path) as made:
        await made.launch()
        made.access.free.clear()
        leaving = asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, "leaves", 30.0))
        await settled()
        waiting = asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, "r", 30.0))
        leaving.cancel()
        await settled()
        made.access.free.set()
        (found,) = await asyncio.wait_for(waiting, 60.0)
        assert made.book.totals.attempts == 1
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [found.episode])
        made.now[0] += 29.0
        made.book.runners.look(made.now[0])
        assert not made.book.totals.aborts


async def test_an_attempt_that_ends_while_it_is_given_to_a_runner_waits_for_none(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch()
        made.access.free.clear()
        leaving = asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, "leaves", 30.0))
        await settled()
        made.book.drop([KEY.prompt])
        leaving.cancel()
        await settled()
        made.access.free.set()
        assert await made.book.runners.lease(ENVIRONMENT, "r", 0.0) == ()


async def test_a_report_that_comes_again_while_it_is_stored_has_the_same_answer(tmp_path):
    """The store is slow, and the runner sends its report again."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        made.access.free.clear()
        first = asyncio.ensure_future(made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0)))
        await settled()
        again = asyncio.ensure_future(made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0)))
        await settled()
        assert not first.done()
        assert not again.done(), "it is not stored yet"
        made.access.free.set()
        await asyncio.gather(first, again)
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0


@pytest.mark.parametrize("by", ["drop", "another replica", "end"])
async def test_a_replica_forgets_an_attempt_that_is_over_here(tmp_path, by):
    """What it counts as outside of its engine is not expected to compute: a replica that hangs would not be found."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        assert (await made.replica.poll(1, 0, 0.0)).outside == 1
        match by:
            case "drop":
                made.book.drop([KEY.prompt])
            case "another replica":
                other = EpisodeReplica(made.engine, made.book)  # type: ignore[arg-type]
                await other.submit(1, [GenerateRequest(KEY, 2, (9,), Sampling(64), 1)])
                assert (await other.poll(1, 0, 0.0)).outside == 1
            case "end":
                await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(failed=FailedPart.ENVIRONMENT))
        assert (await made.replica.poll(1, 0, 0.0)).outside == 0
