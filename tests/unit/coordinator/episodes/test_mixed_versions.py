"""Turns of several versions, call by call: a turn has one version, and a client only waits while weights are loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.episodes import replica as episode_replica
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.coordinator.episodes.restore import rules_of
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.errors import WrongVersion
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.episode import Versions
from rljob_runtime.simulator.peers.harness import HarnessScript
from tests.support.episode_book import KEY, Bench, StandInEngine, bench, settled
from tests.support.episode_job import ENVIRONMENT, EpisodeStage
from tests.support.simulated_job import job

MIXED = Versions.MIXED


def loading(made: Bench, version: int = 2) -> asyncio.Task[int]:
    return asyncio.ensure_future(made.replica.load(1, version))


async def loaded(made: Bench, version: int = 2) -> None:
    made.engine.loadable.set()
    assert await asyncio.wait_for(loading(made, version), 60.0) == version


async def test_each_turn_has_the_weights_that_its_replica_holds(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        first = (await made.answered(made.ask(episode, [1]), [5])).result()
        await loaded(made)
        second = (await made.answered(made.ask(episode, [1, 5, 2]), [6])).result()
        assert (first.weight_version, second.weight_version) == (1, 2)
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        deltas = await made.deltas()
        assert [token for one in deltas for token in one.token_ids] == [5, 6]
        assert {one.weight_version for one in deltas} == {1}, "the response is of its oldest version"
        assert [one.turn.weight_version for one in made.store.turns.history(episode.attempt)] == [1, 2]


async def test_a_turn_that_is_asked_for_during_a_load_waits_for_the_new_weights(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        load = loading(made)
        await settled()
        asked = await made.asked(made.ask(episode, [1]))
        assert not made.engine.requests
        attempt = made.book.number(episode.attempt)
        assert attempt is not None
        assert attempt.waits_for_engine
        made.engine.loadable.set()
        await load
        await settled()
        assert [one.weight_version for one in made.engine.requests] == [2]
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert list((await asked).token_ids) == [5]
        assert made.book.totals.load_wait_seconds > 0
        assert made.book.totals.interrupted_turns == 0


async def test_a_load_waits_for_an_open_turn(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        made.engine.loadable.set()
        asked = await made.asked(made.ask(episode, [1]))
        load = loading(made)
        await settled()
        assert not load.done()
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        assert await asyncio.wait_for(load, 60.0) == 2
        assert (await asked).weight_version == 1
        assert not made.engine.aborted


async def test_a_turn_interrupted_by_a_load_restarts_and_its_client_waits(tmp_path, monkeypatch):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        made.engine.emit([5, 6], finish=None)
        await made.replica.poll(1, 0, 0.0)
        monkeypatch.setattr(episode_replica, "seconds_to_wait", lambda running, waiting, waited: 0.0)
        load = loading(made)
        await settled()
        old = made.engine.requests[-1]
        assert made.engine.aborted == [{old.key: old.attempt}]
        # The engine has emitted the rest before the abort came.
        made.engine.emit([7], offset=2)
        report = await made.replica.poll(1, 0, 0.0)
        assert (report.deltas, report.outside, asked.done()) == ((), 1, False)
        made.engine.loadable.set()
        await load
        await settled()
        new = made.engine.requests[-1]
        assert (new.weight_version, new.prefix_token_ids, new.attempt > old.attempt) == (2, (), True)
        made.engine.emit([8])
        await made.replica.poll(1, 0, 5.0)
        turn = await asked
        assert (list(turn.token_ids), turn.weight_version) == ([8], 2)
        assert (made.book.totals.interrupted_turns, made.book.totals.interrupted_tokens) == (1, 2)


async def test_a_turn_is_interrupted_only_once(tmp_path, monkeypatch):
    seen = []

    def record(running, waiting, waited):
        seen.append([one.interrupted for one in running])
        return 0.0

    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        asked = await made.asked(made.ask(episode, [1]))
        monkeypatch.setattr(episode_replica, "seconds_to_wait", record)
        for version in (2, 3):
            await loaded(made, version)
            await settled()
        assert seen == [[False], [True]]
        asked.cancel()


async def test_turns_go_on_with_the_old_weights_if_a_load_fails(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        load = loading(made)
        await settled()
        asked = await made.asked(made.ask(episode, [1]))
        made.engine.load_failure = WrongVersion("the relay holds nothing")
        made.engine.loadable.set()
        with pytest.raises(WrongVersion):
            await load
        await settled()
        assert [one.weight_version for one in made.engine.requests] == [1]
        asked.cancel()


async def test_an_episode_never_goes_back_to_older_weights(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        await loaded(made)
        await made.answered(made.ask(episode, [1]), [5])
        engine = StandInEngine("rollout-1/replica-0")
        other = EpisodeReplica(engine, made.book)  # type: ignore[arg-type]
        await other.poll(1, 0, 0.0)
        await made.replica.abort(1, {KEY: 1})
        made.replica = other
        await made.launch(attempt=2)
        asked = await made.asked(made.ask(episode, [1, 5, 2]))
        assert not engine.requests, "it holds version 1"
        engine.loadable.set()
        await other.load(1, 2)
        await settled()
        assert [one.weight_version for one in engine.requests] == [2]
        asked.cancel()


async def test_a_mixed_version_attempt_restarts_when_the_job_stops_mixing(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        await loaded(made)
        await made.answered(made.ask(episode, [1]), [5])
    async with bench(tmp_path) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        await made.launch(attempt=2)
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == [episode]
        assert (await made.leased()).episode.attempt > episode.attempt


async def test_an_attempt_of_one_version_goes_on_when_the_job_begins_to_mix(tmp_path):
    """As after an upgrade of a job that leaves the choice to its runtime."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
    async with bench(tmp_path, versions=MIXED) as made:
        assert list(await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])) == []
        await made.launch(attempt=2, prefix=[5])
        await loaded(made)
        second = (await made.answered(made.ask(episode, [1, 5, 2]), [6])).result()
        assert second.weight_version == 2
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert (made.book.totals.attempts, dict(made.book.totals.aborts)) == (0, {})
        assert [one.turn.weight_version for one in made.store.turns.history(episode.attempt)] == [1, 2]


async def test_a_harness_ending_while_its_turn_awaits_weights_has_no_reward(tmp_path):
    async with bench(tmp_path, versions=MIXED) as made:
        episode = await made.begun()
        load = loading(made)
        await settled()
        asked = await made.asked(made.ask(episode, [1]))
        told = await asyncio.wait_for(made.replica.poll(1, 0, 600.0), 60.0)
        polled = asyncio.ensure_future(made.replica.poll(1, told.cursor, 60.0))
        await settled()
        assert made.replica.generates, "a stage has the replica"
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=1.0))
        assert made.book.totals.aborts[AbortCause.ENGINE] == 1
        for task in (load, asked, polled):
            task.cancel()
        await asyncio.gather(load, asked, polled, return_exceptions=True)


# --- jobs ---


def stage_of(path: Path, versions: Versions, **more: Any) -> EpisodeStage:
    made = job(rounds=4, prompts=3, responses=3, mode=Mode.ASYNCHRONOUS, **more)
    script = HarnessScript(turns=6, tool_seconds=2.0)
    return EpisodeStage(path / "state.db", job=made, script=script, versions=versions)


@pytest.mark.parametrize(("versions", "has_newer"), [(Versions.SINGLE, False), (MIXED, True)])
def test_later_turns_have_newer_weights_and_nothing_is_lost(tmp_path, versions, has_newer):
    stage = stage_of(tmp_path, versions)
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert len(stage.trained_ids()) == len(set(stage.trained_ids())) == 4 * 3 * 3
    assert not stage.totals().aborts.keys() - {AbortCause.NOT_NEEDED}
    newer = stage.invariants.episodes.turns_of_newer_weights
    assert (newer > 0) == has_newer
    assert stage.runners.counts["tool calls"] == sum(stage.script.turns_of(key) for key in stage.runners.played), (
        "no tool is called twice"
    )


def test_evaluations_have_one_version(tmp_path):
    """The simulator's invariants compare the version of each of their turns."""
    evaluation = [{"name": "check", "everyRounds": 1, "maxPrompts": 3, "responsesPerPrompt": 2}]
    stage = stage_of(tmp_path, MIXED, evaluation=evaluation)
    stage.play()
    assert [one.round for one in stage.evaluated] == [0, 1, 2, 3, 4]
    assert stage.invariants.episodes.turns_of_newer_weights > 0
    rules = stage.environments[ENVIRONMENT]
    assert rules_of(PromptKey(1, 0, "evaluation:check"), rules) == rules.of_evaluation
    assert rules_of(PromptKey(1, 0), rules) is rules
