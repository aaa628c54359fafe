"""The episode book and its replicas, call by call: with a stand-in for the engine below, and a real store."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import replace

import pytest

from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.coordinator.episodes.scorer import EpisodeScorer
from rljob_runtime.protocols import Delta, GenerateRequest, PeerGone, RewardFailed
from rljob_runtime.protocols.environments import TRACE_TOKENS, TRACE_TURNS, EpisodeReport, FailedPart
from rljob_runtime.protocols.errors import Refused, WrongVersion
from rljob_runtime.protocols.rewards import ResponseAborted
from rljob_runtime.protocols.traces import traceparent
from rljob_runtime.protocols.trajectory import EVALUATION_SOURCE, PromptKey, Response, Sampling, TrajectoryKey
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt, TurnRefused
from rljob_runtime.scheduling.episodes.ends import MOST_HAND_BACKS, AbortCause, EndState
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.episode_book import KEY, LENGTH, STOP, Bench, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodePrompts


async def test_a_turn_is_answered_and_reported_when_it_is_stored(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1, 2]))
        made.access.free.clear()
        made.engine.emit([5, 6])
        first = await made.replica.poll(1, 0, 0.0)
        polled = asyncio.ensure_future(made.replica.poll(1, first.cursor, 600.0))
        await settled()
        assert (first.deltas, asked.done(), polled.done()) == ((), False, False), "the store has not written it"
        made.access.free.set()
        report = await asyncio.wait_for(polled, 60.0)
        assert list((await asked).token_ids) == [5, 6]
        assert [(one.key, one.offset, one.token_ids, one.finish_reason) for one in report.deltas] == [
            (KEY, 0, (5, 6), None)
        ]
        assert len(made.store.turns.history(episode.attempt)) == 1


async def test_the_end_reports_a_response_with_the_tokens_of_all_turns(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1, 2]), [5, 6])
        await made.answered(made.ask(episode, [1, 2, 5, 6, 3]), [7])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.5))
        deltas = await made.deltas()
        assert [token for one in deltas for token in one.token_ids] == [5, 6, 7]
        assert [one.finish_reason for one in deltas] == [None, None, STOP]
        assert [one.offset for one in deltas] == [0, 2, 3]
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.reward == 0.5
        assert kept.end is not None
        assert kept.end.state is EndState.COMPLETED


async def test_turns_of_started_episodes_go_before_first_turns_oldest_first(tmp_path):
    async with bench(tmp_path) as made:
        episodes = []
        for sample in (1, 0):
            await made.launch(key=replace(KEY, sample=sample))
            episodes.append((await made.leased()).episode)
            made.now[0] += 5
        for prompts in ([[1]] * 2, [[1, 5, 2]] * 2):
            for episode, prompt in zip(episodes, prompts, strict=True):
                await made.answered(made.ask(episode, prompt), [5])
        first, also_first, older, younger = [one.priority for one in made.engine.requests]
        assert first == also_first == 0
        assert older < younger < 0


async def test_a_retry_gets_the_recorded_turn_and_opens_none(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        first = (await made.answered(made.ask(episode, [1]), [5])).result()
        again = await made.book.turns.turn(made.ask(episode, [1], retry=True))
        assert (again.node, list(again.token_ids), again.replayed) == (first.node, [5], True)
        assert len(made.engine.requests) == 1


async def test_a_stopped_response_waits_and_goes_on_from_what_has_arrived(tmp_path):
    """A turn goes on with its own tokens at the next launch; the client waits meanwhile."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        made.engine.emit([5, 6], finish=None)
        await made.replica.poll(1, 0, 0.0)
        await made.replica.abort(1, {KEY: 1})
        assert list(made.engine.aborted[-1]) == [made.engine.requests[-1].key]
        assert not asked.done()
        await made.launch(attempt=2)
        await settled()
        assert made.engine.requests[-1].prefix_token_ids == (5, 6)
        assert made.engine.requests[-1].attempt > made.engine.requests[0].attempt
        made.engine.emit([7], offset=2)
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [5, 6, 7]
        assert [one.attempt for one in await made.deltas()] == [2]


async def test_tokens_of_a_stopped_turn_are_stopped_at_the_engine(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        made.book.drop([KEY.prompt])
        made.engine.emit([5], finish=None)
        await made.replica.poll(1, 0, 0.0)
        await settled()
        stopped = made.engine.requests[0]
        assert {stopped.key: stopped.attempt} in made.engine.aborted
        with pytest.raises(AttemptEnded):
            await asked


@pytest.mark.parametrize("end", ["cut", "drop"])
async def test_attempts_end_in_the_order_of_their_prompts(tmp_path, monkeypatch, end):
    """The order of a set differs in each process, and a simulated run is to be the same in all."""
    prompts = [PromptKey(0, index, source) for source in ("sums", "words", "games") for index in range(4)]
    ended = []
    async with bench(tmp_path) as made:
        store_end = made.store.turns.end
        monkeypatch.setattr(made.store.turns, "end", lambda number, *a: ended.append(number) or store_end(number, *a))
        for prompt in sorted(prompts):
            await made.launch(key=TrajectoryKey(prompt, 0))
        await settled()
        getattr(made.book, end)(set(prompts))
        await settled()
    assert ended == sorted(ended)
    assert len(ended) == len(prompts)


async def test_other_weights_begin_another_attempt(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch()
        first = (await made.leased()).episode
        await made.replica.abort(1, {KEY: 1})
        await made.launch(attempt=2, version=2)
        second = (await made.leased()).episode
        assert second.attempt > first.attempt
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [first, second])) == [first]
        with pytest.raises(AttemptEnded):
            await made.book.turns.turn(made.ask(first, [1]))


async def test_a_limit_refuses_turns_and_the_episode_is_truncated(tmp_path):
    async with bench(tmp_path, Limits(turns=1)) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        with pytest.raises(TurnRefused, match="turns"):
            await made.book.turns.turn(made.ask(episode, [1, 5, 2]))
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert (await made.deltas())[-1].finish_reason is LENGTH


@pytest.mark.parametrize("by", ["refused turn", "cut turn"])
async def test_an_episode_at_a_limit_is_truncated_after_a_coordinator_loss(tmp_path, by):
    limits = Limits(turns=1) if by == "refused turn" else Limits(tokens=2)
    async with bench(tmp_path, limits) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5], LENGTH)
        if by == "refused turn":
            for _ in range(3):
                with pytest.raises(TurnRefused, match="turns"):
                    await made.book.turns.turn(made.ask(episode, [1, 5, 2]))
    async with bench(tmp_path, limits) as made:
        await made.launch(attempt=2)
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert kept.end.state is EndState.TRUNCATED
        assert (await made.deltas())[-1].finish_reason is LENGTH


async def test_a_refusal_leaves_when_its_limit_is_stored_and_is_stored_once(tmp_path):
    async with bench(tmp_path, Limits(turns=1)) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        made.access.free.clear()
        refused = await made.asked(made.ask(episode, [1, 5, 2]))
        assert not refused.done()
        made.access.free.set()
        with pytest.raises(TurnRefused):
            await refused
        before = made.access.calls
        with pytest.raises(TurnRefused):
            await made.book.turns.turn(made.ask(episode, [1, 5, 3]))
        assert made.access.calls == before


async def test_an_agent_that_never_calls_the_model_has_no_answer(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert kept.end.cause is AbortCause.NO_TURN
        assert kept.reward is None
        assert made.book.totals.aborts[AbortCause.NO_TURN] == 1


@pytest.mark.parametrize(
    "report",
    [
        EpisodeReport(reward=math.nan),
        EpisodeReport(reward=math.inf),
        EpisodeReport(reward=1e308),
        EpisodeReport(reward=-1.1e9),
        EpisodeReport(metrics={"a": math.inf}),
        EpisodeReport(metrics={"x" * 999: 1.0}),
        EpisodeReport(metrics={"\ud800": 1.0}),
        EpisodeReport(failed=FailedPart.ENVIRONMENT, detail="half a \ud800"),
    ],
)
async def test_a_report_that_cannot_be_stored_does_not_end_the_coordinator(tmp_path, report):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        await asyncio.wait_for(made.book.runners.done(ENVIRONMENT, "r", episode, report), 60.0)
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert (kept.end.cause is AbortCause.ENVIRONMENT) == (report.reward is not None or report.failed is not None)
        assert kept.metrics == {}


@pytest.mark.parametrize(
    ("traced", "differ"),
    [({}, 0), ({TRACE_TURNS: 1, TRACE_TOKENS: 2}, 0), ({TRACE_TURNS: 2, TRACE_TOKENS: 2}, 1), ({TRACE_TOKENS: 3}, 1)],
)
async def test_a_trace_of_the_harness_is_compared_and_never_trained_on(tmp_path, traced, differ):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0, metrics=traced))
        assert made.book.totals.differing_traces == differ
        assert [token for one in await made.deltas() for token in one.token_ids] == [5, 6]


async def test_a_report_counts_once_and_another_runner_has_none(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        with pytest.raises(AttemptEnded):
            await made.book.runners.done(ENVIRONMENT, "other", episode, EpisodeReport(reward=0.0))
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=0.0))
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0
        with pytest.raises(AttemptEnded):
            await made.book.runners.done(ENVIRONMENT, "other", episode, EpisodeReport(reward=0.0))


async def test_the_deadline_counts_from_the_lease(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch()
        made.now[0] += 50.0
        assert (await made.leased()).deadline == 1000.0 + 50.0 + 60.0


async def test_the_next_coordinator_moves_a_deadline_by_the_time_it_was_away(tmp_path):
    """It knows that the attempt's newest turn was stored 50 s after the lease of 60 s, and 50 s before."""
    async with bench(tmp_path) as made:
        await made.launch()
        made.now[0] += 50.0
        leased = await made.leased()
        await made.answered(made.ask(leased.episode, [1]), [5])
    async with bench(tmp_path) as made:
        made.now[0] += 100.0
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [leased.episode])) == []
        (attempt,) = made.book.numbers()
        assert (leased.deadline, attempt.episode.deadline) == (1110.0, 1160.0)


async def test_an_attempt_whose_record_cannot_be_read_is_a_failure_of_ours(tmp_path):
    """The runner asks for another one: the first must not keep all others waiting."""

    class Unreadable(EpisodePrompts):
        async def record(self, key: PromptKey) -> Mapping[str, object]:
            raise OSError("its file is gone")

    async with bench(tmp_path) as made:
        made.book.use_prompts(Unreadable())
        await made.launch()
        assert not await made.book.runners.lease(ENVIRONMENT, "r", 0.0)
        await settled()
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert kept.end.reason == "environment: its record cannot be read: its file is gone"


async def test_a_runner_that_waits_gets_the_next_attempt(tmp_path):
    async with bench(tmp_path) as made:
        waiting = asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, "r", 30.0))
        await settled()
        await made.launch()
        assert len(await asyncio.wait_for(waiting, 60.0)) == 1
        assert await made.book.runners.lease("another", "r", 0.0) == ()


async def test_waiting_runners_receive_a_launchs_attempts_in_one_answer_each(tmp_path):
    async with bench(tmp_path) as made:
        waiting = [asyncio.ensure_future(made.book.runners.lease(ENVIRONMENT, name, 30.0, 64)) for name in "rs"]
        await settled()
        keys = [TrajectoryKey(PromptKey(0, index), 0) for index in range(9)]
        await made.replica.submit(1, [GenerateRequest(key, 1, (9,), Sampling(64, seed=1), 1) for key in keys])
        before = made.access.calls
        found = await asyncio.wait_for(asyncio.gather(*waiting), 60.0)
        assert [len(one) for one in found] == [5, 4]
        assert [one.episode.key for part in found for one in part] == keys
        assert made.book.runners.leases == 2
        assert made.access.calls <= before + 2, "one call of the store for a lease"


async def test_a_failed_call_for_a_turn_is_an_error_of_the_next_poll(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        made.engine.failure = PeerGone("its process ended")
        asked = asyncio.ensure_future(made.book.turns.turn(made.ask(episode, [1])))
        with pytest.raises(PeerGone):
            await made.replica.poll(1, 0, 5.0)
        assert not asked.done(), "another replica goes on"
        asked.cancel()


async def test_a_turn_that_an_engine_refuses_ends_only_its_attempt(tmp_path):
    """Each replica would refuse it, and the job would lose one after the other."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        made.engine.failure = Refused("token id 99 is outside the model's vocabulary of 50")
        with pytest.raises(AttemptEnded):
            await made.book.turns.turn(made.ask(episode, [99]))
        assert (await made.deltas())[-1].finish_reason is STOP
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert kept.end.cause is AbortCause.ENGINE
        assert "token id 99" in kept.end.detail


async def test_a_replica_of_other_weights_is_lost(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        made.engine.failure = WrongVersion("it holds version 2")
        asked = await made.asked(made.ask(episode, [1]))
        with pytest.raises(WrongVersion):
            await made.replica.poll(1, 0, 5.0)
        assert not asked.done(), "another replica goes on"
        asked.cancel()


async def test_a_response_whose_turns_are_lost_ends_as_a_failure_of_ours(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch(attempt=4, prefix=(5, 6))
        await settled()
        deltas = await made.deltas()
        assert [(one.offset, one.token_ids, one.finish_reason) for one in deltas] == [(2, (), STOP)]
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert kept.end.cause is AbortCause.GATEWAY


async def test_a_failed_tool_server_is_no_reward(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        failed = EpisodeReport(reward=1.0, failed=FailedPart.TOOL_SERVER, detail="it is gone")
        await made.book.runners.done(ENVIRONMENT, "r", episode, failed)
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.reward is None
        assert kept.end is not None
        assert kept.end.reason == "tool server: it is gone"


async def test_an_attempt_that_the_gateway_did_not_serve_is_no_reward(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        failed = EpisodeReport(failed=FailedPart.GATEWAY, detail="no place for 1 of its requests")
        await made.book.runners.done(ENVIRONMENT, "r", episode, failed)
        kept = made.store.turns.newest([KEY])[KEY]
        assert kept.end is not None
        assert (kept.reward, kept.end.cause) == (None, AbortCause.GATEWAY)
        assert kept.end.reason == "gateway: no place for 1 of its requests"


async def test_a_silent_runner_loses_its_attempt_and_one_that_lives_keeps_it(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        made.now[0] += 29.0
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        made.now[0] += 29.0
        made.book.runners.look(made.now[0])
        assert not made.book.totals.aborts
        made.now[0] += 2.0
        made.book.runners.look(made.now[0])
        assert made.book.totals.aborts[AbortCause.ENVIRONMENT] == 1
        await settled()
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]


async def test_a_runner_goes_on_under_the_next_coordinator(tmp_path):
    """It says that it lives before its response is launched again, and its client's turn is there."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
    async with bench(tmp_path) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        assert list((await made.book.turns.turn(made.ask(episode, [1], retry=True))).token_ids) == [5, 6]
        asked = await made.asked(made.ask(episode, [1, 5, 6, 2]))
        assert not made.engine.requests, "it waits for a replica"
        await made.launch(attempt=2, prefix=(5,))
        await settled()
        made.engine.emit([7])
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [7]
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert [(one.offset, one.token_ids) for one in await made.deltas()] == [(1, (6,)), (2, (7,)), (3, ())]


async def test_runners_of_other_environments_cannot_claim_an_adopted_attempt(tmp_path):
    """Its name is in its claims, and the attempt waits for its own runner."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
    async with bench(tmp_path) as made:
        for _ in range(2):
            assert list(await made.book.runners.heartbeat("code", "code/r", [episode])) == [episode]
        with pytest.raises(AttemptEnded, match=f"is of environment {ENVIRONMENT}, and the runner of code"):
            await made.book.runners.done("code", "code/r", episode, EpisodeReport(reward=0.0))
        assert made.book.runners.claims_refused == 3
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert made.store.turns.newest([KEY])[KEY].reward == 1.0


async def test_a_handed_back_attempt_is_no_failure_until_there_are_many(tmp_path):
    async with bench(tmp_path) as made:
        scorer = EpisodeScorer(made.book, None)  # type: ignore[arg-type]
        counts = []
        for attempt in range(1, MOST_HAND_BACKS + 2):
            await made.launch(attempt)
            episode = (await made.leased()).episode
            await made.hand_back(episode)
            with pytest.raises(ResponseAborted, match="runner left: it was told to end") as aborted:
                await scorer.score(Response(KEY, attempt, 1, (), (), STOP, "x"))
            counts.append(aborted.value.counts)
        assert counts == [False] * MOST_HAND_BACKS + [True]
        assert made.book.totals.aborts == {AbortCause.RUNNER_LEFT: MOST_HAND_BACKS + 1}


async def test_turns_of_an_evaluation_have_the_same_seeds_in_each_attempt(tmp_path):
    """A retried evaluation is the same sample; the prompt decides, and equal prompts of one attempt differ."""
    evaluated = replace(KEY, prompt=replace(KEY.prompt, source=f"{EVALUATION_SOURCE}check"))

    async def seeds(made: Bench, key: TrajectoryKey, attempt: int) -> list[int | None]:
        await made.launch(attempt, key=key)
        episode = (await made.leased()).episode
        first = len(made.engine.requests)
        for prompt in ([1], [1], [2]):
            await made.answered(made.ask(episode, prompt), [5])
        report = EpisodeReport(failed=FailedPart.TOOL_SERVER)
        await made.book.runners.done(ENVIRONMENT, "r", episode, report)
        made.book.finished(key).scored = True  # type: ignore[union-attr]
        return [request.sampling.seed for request in made.engine.requests[first:]]

    async with bench(tmp_path) as made:
        one, again = [await seeds(made, evaluated, attempt) for attempt in (1, 2)]
        assert one == again
        assert len(set(one)) == 3
        trained, other = [await seeds(made, KEY, attempt) for attempt in (1, 2)]
        assert not set(trained) & {*other, *one}


async def test_a_runner_that_names_what_was_never_drawn_leaves_no_trace(tmp_path):
    """Its key is signed, but it may state any attempts."""
    keys = [PromptKey(0, 3, f"made-up-{one}") for one in range(20)]
    keys += [PromptKey(1 << 32, 3), PromptKey(0, 1 << 70), PromptKey(-1, 3)]
    named = [EpisodeAttempt(TrajectoryKey(key, 1), 99) for key in keys]
    named.append(EpisodeAttempt(TrajectoryKey(PromptKey(0, 3), 1 << 70), 99))
    async with bench(tmp_path) as made:
        await made.begun()
        asked = made.access.calls
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", named)) == named
        assert made.access.calls - asked == 1
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM sources").fetchone() == (0,)


async def test_a_turn_of_a_restarted_coordinator_replaces_that_of_the_former_one(tmp_path):
    """Both have the number of a turn that was not stored. The engine may still generate the first."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        former = made.engine.requests[-1]
        asked.cancel()
    async with bench(tmp_path) as made:
        await made.replica.submit(2, [GenerateRequest(KEY, 2, (9,), Sampling(64, seed=1), 1, (5,))])
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        again = made.engine.requests[-1]
        assert again.key == former.key
        assert again.attempt > former.attempt
        asked.cancel()


async def test_a_launch_without_tokens_goes_on_with_the_turns_that_are_stored(tmp_path):
    """The coordinator died before it received any token of the response, and before it received its end."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
    async with bench(tmp_path) as made:
        await made.launch(attempt=2)
        assert [(one.offset, one.token_ids) for one in await made.deltas()] == [(0, (5, 6))]
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
    async with bench(tmp_path) as made:
        await made.launch(attempt=3)
        assert [(one.token_ids, one.finish_reason) for one in await made.deltas()] == [((5, 6), STOP)]
        assert made.book.totals.attempts == 0


async def test_a_response_whose_reward_failed_begins_again(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(failed=FailedPart.TOOL_SERVER))
        response = Response(KEY, 1, 1, (5,), (-0.5,), STOP, made.replica.name)
        with pytest.raises(RewardFailed):
            await EpisodeScorer(made.book, None).score(response)  # type: ignore[arg-type]
        await made.launch(attempt=2)
        assert (await made.leased()).episode.attempt > episode.attempt


async def test_an_attempt_that_no_runner_has_is_ended_by_none(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch()
        (waiting,) = made.book.numbers()
        with pytest.raises(AttemptEnded):
            await made.book.runners.done(ENVIRONMENT, "r", waiting.id, EpisodeReport(reward=1.0))
        assert (await made.leased()).episode == waiting.id


async def test_a_turn_whose_tokens_are_missing_is_launched_again(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        made.engine.emit([7], offset=3)
        await made.replica.poll(1, 0, 0.0)
        await settled()
        first, second = made.engine.requests
        assert (second.key, second.attempt, second.prefix_token_ids) == (first.key, first.attempt + 1, ())
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [5]


async def test_an_invalid_answer_ends_its_attempt_as_a_failure_of_ours(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        last = made.engine.requests[-1]
        made.engine.outbox.append(Delta(last.key, last.attempt, 0, (5,), (math.nan,), 1, STOP))
        await made.replica.poll(1, 0, 0.0)
        with pytest.raises(AttemptEnded):
            await asked
        assert made.book.totals.aborts[AbortCause.ENGINE] == 1


async def test_prompts_of_later_turns_count_with_what_engines_held_of_them(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1, 2]), [5], cached=2)
        await made.answered(made.ask(episode, [1, 2, 5, 3]), [6], cached=3)
        await made.answered(made.ask(episode, [1, 2, 5, 3, 6, 4]), [7])
        # More than the prompt: a turn that another engine began brings tokens with it.
        await made.answered(made.ask(episode, [1, 2, 5, 4]), [7], cached=9)
        totals = made.book.totals
        assert (totals.held_prompt_tokens, totals.later_prompt_tokens) == (3 + 4, 4 + 4)


async def test_tokens_that_the_gateway_found_in_another_form_count_once(tmp_path):
    async with bench(tmp_path) as made:
        episode = await made.begun()
        call = replace(made.ask(episode, [1]), reencoded_tokens=3)
        await made.answered(call, [5])
        await made.book.turns.turn(replace(call, retry=True))
        assert made.book.totals.reencoded_tokens == 3


async def test_a_poll_ends_when_the_engine_has_work_again(tmp_path):
    """From when to when a replica waits for its environments must be known, and a turn takes longer than a poll."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        assert (await made.replica.poll(1, 0, 0.0)).outside == 1
        made.engine.submit = silent  # The engine's own poll would end with the request.
        polling = asyncio.ensure_future(made.replica.poll(1, 0, 60.0))
        await settled()
        assert not polling.done()
        asked = await made.asked(made.ask(episode, [1]))
        assert polling.done()
        assert (polling.result().deltas, polling.result().outside) == ((), 0)
        asked.cancel()


async def silent(term: int, requests: object) -> None:
    """Take requests, and say nothing."""


async def test_a_runner_gets_the_trace_of_the_attempt_where_traces_are_exported(tmp_path):
    async with bench(tmp_path, runners=RunnerRules(traced_run="uid-1")) as made:
        await made.launch()
        found = await made.leased()
        assert found.traceparent == traceparent("uid-1", found.episode.attempt)
    untraced = tmp_path / "untraced"
    untraced.mkdir()
    async with bench(untraced) as made:
        await made.launch()
        assert (await made.leased()).traceparent is None
