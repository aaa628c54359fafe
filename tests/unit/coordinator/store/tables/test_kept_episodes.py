"""Samples of episodes have their turns: who spoke, what was sampled, and when, from the requests before they go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.coordinator.store.evaluations import EvaluatedSample
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.kept_episodes import kept_episode
from rljob_runtime.coordinator.store.tables.kept_samples import SampleRules
from rljob_runtime.protocols.environments import ToolCall
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, Response, TrajectoryKey
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.evaluation import evaluation_key
from tests.support.episodes import STOP
from tests.support.stored_episodes import begin_asynchronous, given, open_round, sampled, settle, update

PROMPT = PromptKey(0, 0)
KEY = TrajectoryKey(PROMPT, 0)
TRUNCATED = EpisodeEnd(EndState.TRUNCATED, limit=Limit.TURNS)

SYSTEM, EXAMPLE = {"role": "system", "content": "Calculate."}, {"role": "assistant", "content": "an example"}
QUESTION = {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2?"}]}
CALL = {"id": "call_2_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_2_0", "content": "3"}
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def body(*messages: dict) -> bytes:
    return json.dumps({"messages": messages, "tools": TOOLS}).encode()


FIRST = body(SYSTEM, EXAMPLE, QUESTION)
SECOND = body(SYSTEM, EXAMPLE, QUESTION, ASKED, RESULT)
BESIDE = body(SYSTEM, EXAMPLE, QUESTION, ASKED, {"role": "user", "content": "again"})


def play(store: Store, number: int, second: bytes = SECOND, beside: bytes = BESIDE) -> None:
    """A call, an answer after its result, and a branch beside that answer."""
    store.turns.commit(number, [given(1, 0, 1, 1, 1), sampled(2, 1, 3)], FIRST, 12.5, 11.0)
    store.turns.commit(number, [given(3, 2, 4, 4), sampled(4, 3, 5, 6)], second, 15.0, 14.5)
    store.turns.commit(number, [given(5, 2, 7), sampled(6, 5, 8, version=2)], beside, 16.0, 15.5)
    store.turns.end(number, TRUNCATED, 17.0, 1.0, {"calls": 1})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state.db", "uid-1")
    store.samples.rules = SampleRules(None, seed=7, advantages=lambda rewards: [0.0 for _ in rewards])
    yield store
    store.close()


def bodies(store: Store) -> int:
    """Count the requests that are kept of the first attempt."""
    return sum(len(turn.body) > 0 for turn in store.turns.history(1))


def play_round(store: Store, second: bytes = SECOND, beside: bytes = BESIDE) -> SampleEpisode:
    store.start_at(Boundary(0, Cursor()))
    plan = open_round(store, 1, PROMPT)
    play(store, store.turns.begin(KEY, 1, 10.0, "calc"), second, beside)
    store.trajectories.append(1, [Tokens(KEY, 0, (3, 5, 6, 8), (-1.0,) * 4)])
    settle(store, plan)
    (kept,) = store.samples.read(1, 0, 9)
    assert kept.sample.episode is not None
    return kept.sample.episode


def test_turns_have_the_messages_and_the_calls_of_their_requests(store):
    episode = play_round(store)
    assert (episode.environment, episode.state, episode.end, episode.forks, episode.tools, episode.metrics) == (
        "calc", "truncated", "the limit of turns was reached", 1, ("add",), {"calls": 1.0}
    )  # fmt: skip
    first, second, beside = episode.turns
    assert first.messages == (
        SampleMessage("system", "Calculate."),
        SampleMessage("assistant", "an example"),
        SampleMessage("user", "1 + 2?"),
    )
    assert first.calls == (SampleCall("add", '{"a": 1, "b": 2}', "call_2_0"),)
    assert second.messages == (SampleMessage("tool", "3", "call_2_0"),)
    assert beside.messages == (SampleMessage("user", "again"),)
    assert [(turn.node, turn.after) for turn in episode.turns] == [(2, 0), (4, 2), (6, 2)]
    assert bodies(store) == 0, "requests go when their round closes"


def test_turns_have_their_tokens_versions_and_seconds(store):
    first, second, beside = play_round(store).turns
    assert [turn.given_ids for turn in (first, second, beside)] == [(1, 1, 1), (4, 4), (7,)]
    assert [turn.sampled_ids for turn in (first, second, beside)] == [(3,), (5, 6), (8,)]
    assert [turn.weight_version for turn in (first, second, beside)] == [1, 1, 2]
    assert [(turn.outside_seconds, turn.model_seconds) for turn in (first, second, beside)] == [
        (1.0, 1.5), (2.0, 0.5), (3.0, 0.5)
    ]  # fmt: skip
    assert (first.given_tokens, first.sampled_tokens, first.finish) == (3, 1, "stop")


def test_calls_have_the_seconds_that_their_runner_measured(store):
    store.start_at(Boundary(0, Cursor()))
    number = store.turns.begin(KEY, 1, 10.0, "calc")
    store.turns.commit(number, [given(1, 0, 1, 1, 1), sampled(2, 1, 3)], FIRST, 12.5, 11.0)
    store.tool_calls.add(number, ToolCall(2, 0, "add", "{}", "3", 0.1234), 0, 13.0)
    store.turns.commit(number, [given(3, 2, 4, 4), sampled(4, 3, 5, 6)], SECOND, 15.0, 14.5)
    (call,) = kept_episode(store._db, KEY).turns[0].calls
    assert (call.name, call.seconds, call.stored) == ("add", 0.123, 13.0)


def test_an_aborted_attempt_has_its_cause_apart_from_the_detail(store):
    store.start_at(Boundary(0, Cursor()))
    number = store.turns.begin(KEY, 1, 10.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], FIRST, 12.5, 11.0)
    store.turns.end(number, EpisodeEnd(EndState.ABORTED, cause=AbortCause.TOOL_SERVER, detail="foreign"), 17.0)
    episode = kept_episode(store._db, KEY)
    assert (episode.state, episode.cause, episode.end) == ("aborted", "tool server", "tool server: foreign")


def test_a_client_that_sends_tokens_has_turns_without_messages(store):
    tokens = json.dumps({"token_ids": [1, 1, 1, 3, 4, 4]}).encode()
    first, second, beside = play_round(store, second=tokens, beside=tokens).turns
    assert (first.messages, second.messages, beside.messages) == ((), (), ())
    assert (first.given_ids, second.given_ids) == ((1, 1, 1), (4, 4))


def test_an_update_keeps_the_turns_of_what_it_trains_on(store):
    begin_asynchronous(store, PROMPT)
    play(store, store.turns.begin(KEY, 1, 10.0, "calc"))
    store.experience.append([Tokens(KEY, 0, (3, 5, 6, 8), (-1.0,) * 4)])
    store.experience.finish([], [Response(KEY, 1, 1, (), (), STOP, "rollout-0")])
    store.experience.score([(KEY, 1.0)])
    update(store, 1, PROMPT)
    (kept,) = store.samples.read(1, 0, 9)
    assert kept.sample.episode is not None
    assert [len(turn.messages) for turn in kept.sample.episode.turns] == [3, 1, 1]
    assert bodies(store) == 0


def test_an_evaluation_keeps_the_turns_of_its_samples(store):
    store.start_at(Boundary(0, Cursor()))
    key = TrajectoryKey(evaluation_key("held", 0, 5), 0)
    store.evaluations.open(0, {"held": "digest"})
    play(store, store.turns.begin(key, 1, 10.0, "calc"))
    response = Response(key, 1, 1, (3, 5, 6, 8), (-1.0,) * 4, STOP, "rollout-0")
    store.evaluations.record(0, "held", EvaluatedSample(5, 0, 4, "stop", 1.0, {}), response)
    store.evaluations.close(0, "held", "{}")
    (kept,) = store.evaluations.samples.read(0, "held", 0, 9)
    assert kept.sample.episode is not None
    assert [len(turn.messages) for turn in kept.sample.episode.turns] == [3, 1, 1]
    assert bodies(store) == 0


def test_a_job_without_environments_has_none(store):
    store.start_at(Boundary(0, Cursor()))
    plan = open_round(store, 1, PROMPT)
    store.trajectories.append(1, [Tokens(KEY, 0, (3,), (-1.0,))])
    settle(store, plan)
    (kept,) = store.samples.read(1, 0, 9)
    assert kept.sample.episode is None
