"""Turns in the store: attempts of episodes, their trees, and what rounds, updates and rewinds do with them."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rljob_runtime.audit.stored_keys import prompt_of
from rljob_runtime.audit.stored_turns import Context, trained_digest
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables import turns
from rljob_runtime.coordinator.store.tables.turns import (
    MOST_BODY_BYTES,
    MOST_DETAIL,
    KeptEpisode,
    NodeChanged,
)
from rljob_runtime.protocols.environments import MOST_METRIC_NAME, MOST_METRICS
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.node import Node, NodeKind
from rljob_runtime.scheduling.episodes.times import TurnSpan
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.scheduling.round_plan import PromptOutcome
from tests.support.episodes import LENGTH, STOP, RecordingEngine, opened
from tests.support.stored_episodes import (
    ABORTED,
    COMPLETED,
    begin_asynchronous,
    collect,
    generate,
    given,
    open_round,
    play_round,
    sampled,
    settle,
    update,
)

PROMPT = PromptKey(0, 0)
KEY = TrajectoryKey(PROMPT, 0)
TRUNCATED = EpisodeEnd(EndState.TRUNCATED, limit=Limit.TURNS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path, "uid-1")
    store.start_at(Boundary(0, Cursor()))
    yield store
    store.close()


def as_stored(node: Node) -> tuple[object, ...]:
    """All values of a node, with log-probabilities as float32."""
    return (
        *(node.id, node.parent, node.kind, list(node.token_ids), list(array("f", node.logprobs))),
        *(node.version, node.digest, node.finish),
    )


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


# --- one attempt ---


def test_an_attempt_is_read_as_it_was_committed(store):
    number = store.turns.begin(KEY, 3, 10.5, "calc")
    first, second = (given(1, 0, 1, 2), sampled(2, 1, 3, 4, version=3)), (given(3, 2, 5), sampled(4, 3, 6, version=4))
    store.turns.commit(number, first, b"one", 11.0)
    store.turns.commit(number, second, b"two", 12.0)
    kept = store.turns.newest([KEY])[KEY]
    assert (kept.number, kept.key, kept.version, kept.started, kept.environment) == (number, KEY, 3, 10.5, "calc")
    assert [as_stored(node) for node in kept.nodes] == [as_stored(node) for node in (*first, *second)]
    assert (kept.end, kept.reward, kept.metrics, kept.ended, kept.last_node_id) == (None, None, {}, None, 4)
    assert store.turns.open_attempts() == [kept]


def test_nodes_are_in_the_order_of_their_commits(store):
    """Concurrent turns may be committed in another order than they were opened."""
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(3, 1, 3)], b"late", 1.0)
    store.turns.commit(number, [sampled(2, 1, 2)], b"early", 2.0)
    assert [node.id for node in store.turns.newest([KEY])[KEY].nodes] == [1, 3, 2]
    assert [one.turn.node for one in store.turns.history(number)] == [2, 3]


def test_the_newest_turn_is_the_last_of_the_history(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    assert store.turns.history(number, newest=True) == []
    store.turns.commit(number, [given(1, 0, 1), sampled(3, 1, 3)], b"late", 1.0)
    store.turns.commit(number, [sampled(2, 1, 2)], b"early", 2.0)
    (newest,) = store.turns.history(number, newest=True)
    assert newest == store.turns.history(number)[-1]
    assert (newest.turn.node, newest.body) == (3, b"late")


def test_a_history_has_the_newest_turns_that_are_not_too_long_together(store, monkeypatch):
    """A client may pad its requests. Packed they are nothing, and read they are gigabytes."""
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    for turn, size in enumerate([40, 30, 30], 1):
        store.turns.commit(number, [given(2 * turn, 0, turn), sampled(2 * turn + 1, 2 * turn, 9)], b" " * size, 1.0)
    for most, kept in [(100, 3), (99, 2), (59, 1), (10, 1)]:
        monkeypatch.setattr(turns, "MOST_HISTORY_BYTES", most)
        history = store.turns.history(number)
        assert [one.turn for one in history] == store.turns.recorded(number)[3 - kept :]
        assert [len(one.body) for one in history] == [40, 30, 30][3 - kept :]


def test_a_commit_that_comes_again_changes_nothing(store, path):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    nodes = [given(1, 0, 1), sampled(2, 1, 3)]
    store.turns.commit(number, nodes, b"one", 1.0)
    store.turns.commit(number, nodes, b"again", 2.0)
    assert store.turns.end(number, COMPLETED, 3.0)
    store.turns.commit(number, nodes, b"after the end", 4.0)
    (only,) = store.turns.history(number)
    assert (only.body, only.turn.stored_at) == (b"one", 1.0)


@pytest.mark.parametrize(
    "other",
    [
        Node(2, 1, NodeKind.SAMPLED, (9,), (-0.3,), 1, "digest-2", STOP),
        Node(2, 1, NodeKind.SAMPLED, (3,), (-0.4,), 1, "digest-2", STOP),
        Node(2, 1, NodeKind.SAMPLED, (3,), (-0.3,), 2, "digest-2", STOP),
        Node(2, 0, NodeKind.SAMPLED, (3,), (-0.3,), 1, "digest-2", STOP),
    ],
    ids=["token", "logprob", "version", "parent"],
)
def test_a_node_never_changes(store, other):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], b"one", 1.0)
    with pytest.raises(NodeChanged, match=f"node 2 of attempt {number}"):
        store.turns.commit(number, [other], b"two", 2.0)
    assert [as_stored(node) for node in store.turns.newest([KEY])[KEY].nodes][1] == as_stored(sampled(2, 1, 3))


def test_a_turn_is_stored_whole_or_not_at_all(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    with pytest.raises(sqlite3.IntegrityError, match="a node is stored after its parent"):
        store.turns.commit(number, [given(1, 0, 1), sampled(4, 3, 3)], b"one", 1.0)
    assert store.turns.newest([KEY])[KEY].nodes == ()


def test_a_cut_turn_is_not_extended(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3, finish=LENGTH)], b"one", 1.0)
    with pytest.raises(sqlite3.IntegrityError, match="which was not cut"):
        store.turns.commit(number, [sampled(3, 2, 3)], b"two", 2.0)


def test_history_has_the_whole_prompt_of_each_turn(store):
    """Its turns, prompts and forks are those of the state machine that made them."""
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    told = []
    for place, (prompt, answer) in enumerate(
        [((1, 2), (3,)), ((1, 2, 3, 4), (5, 6)), ((1, 2), (7,)), ((8,), (9,)), ((1, 2, 3), (10,))]
    ):
        before = episode.stats.forks
        turn = opened(episode, prompt)
        forked = episode.stats.forks > before
        nodes = engine.answer(episode, turn, prompt, answer)
        store.turns.commit(number, nodes, str(prompt).encode(), float(place))
        told.append((list(prompt), str(prompt).encode(), turn.id, list(answer), float(place), forked))
    found = [
        (list(one.token_ids), one.body, one.turn.node, list(one.turn.token_ids), one.turn.stored_at, one.turn.forked)
        for one in store.turns.history(number)
    ]
    assert found == told
    assert [forked for *_, forked in found] == [False, False, True, True, True]
    assert all(one.turn.replayed and one.turn.weight_version == 1 for one in store.turns.history(number))


def test_a_given_node_whose_turn_was_dropped_occupies_its_place(store):
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    episode.drop(opened(episode, (1, 2)).id)
    for prompt in ((1, 2), (4,)):
        store.turns.commit(number, engine.answer(episode, opened(episode, prompt), prompt, (3,)), b"", 1.0)
    assert [one.turn.forked for one in store.turns.history(number)] == [False, True]


# --- ends ---


@pytest.mark.parametrize("end", [COMPLETED, TRUNCATED])
def test_an_end_is_read_as_it_was_recorded(store, end):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    assert store.turns.end(number, end, 9.0, 0.5, {"tools": 3})
    kept = store.turns.newest([KEY])[KEY]
    assert (kept.end, kept.ended, kept.reward, kept.metrics) == (end, 9.0, 0.5, {"tools": 3.0})
    assert store.turns.open_attempts() == []


def test_the_first_end_counts(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    assert store.turns.end(number, ABORTED, 5.0)
    assert not store.turns.end(number, COMPLETED, 6.0, 1.0)
    kept = store.turns.newest([KEY])[KEY]
    assert (kept.end, kept.reward, kept.ended) == (ABORTED, None, 5.0)
    assert not store.turns.end(number + 1, COMPLETED, 6.0), "it is not known"


def test_an_aborted_attempt_has_no_reward(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        store.turns.end(number, ABORTED, 5.0, 0.0)


def test_an_attempt_takes_no_node_after_its_end(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.end(number, ABORTED, 5.0)
    with pytest.raises(sqlite3.IntegrityError, match="an attempt takes no node after its end"):
        store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], b"one", 6.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "3", None])
def test_a_metric_that_is_no_finite_number_is_refused(store, value):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    with pytest.raises(ValueError, match=r"metric tools is .*; a finite number would be right"):
        store.turns.end(number, COMPLETED, 5.0, 1.0, {"tools": value})
    assert store.turns.newest([KEY])[KEY].end is None


def test_what_an_agent_sends_is_bounded(store):
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    with pytest.raises(ValueError, match=f"{MOST_METRICS} are allowed"):
        store.turns.end(number, COMPLETED, 5.0, 1.0, {str(one): 1.0 for one in range(MOST_METRICS + 1)})
    with pytest.raises(ValueError, match=f"a name of {MOST_METRIC_NAME + 1} characters"):
        store.turns.end(number, COMPLETED, 5.0, 1.0, {"x" * (MOST_METRIC_NAME + 1): 1.0})
    with pytest.raises(ValueError, match="a finite number would be right"):
        store.turns.end(number, COMPLETED, 5.0, math.nan)
    with pytest.raises(ValueError, match=f"{MOST_BODY_BYTES} are allowed"):
        store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], b"x" * (MOST_BODY_BYTES + 1), 1.0)
    store.turns.end(number, EpisodeEnd(EndState.ABORTED, cause=AbortCause.ENVIRONMENT, detail="x" * 9_999), 5.0)
    assert store.turns.newest([KEY])[KEY].end.detail == "x" * MOST_DETAIL


# --- several attempts ---


def test_the_newest_attempt_is_the_last_one(store):
    first = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.end(first, ABORTED, 1.0)
    second = store.turns.begin(KEY, 1, 2.0, "calc")
    other = store.turns.begin(TrajectoryKey(PROMPT, 1), 1, 3.0, "calc")
    assert len({first, second, other}) == 3
    assert store.turns.newest([KEY])[KEY].number == second
    assert store.turns.newest([TrajectoryKey(PROMPT, 2)]) == {}
    assert [one.number for one in store.turns.open_attempts()] == [second, other]


def test_numbers_are_not_given_again(path):
    """A new history begins, and later a new store: agents may still hold attempts of the former ones."""
    store = Store(path, "uid-1")
    assert store.adopt_term(1) == 1
    store.start_at(Boundary(0, Cursor()))
    first = store.turns.begin(KEY, 1, 0.0, "calc")
    store.start_at(Boundary(4, Cursor()))
    assert store.turns.newest([KEY]) == {}
    second = store.turns.begin(KEY, 1, 0.0, "calc")
    store.close()
    path.unlink()
    store = Store(path, "uid-1")
    store.adopt_term(2)
    assert first < second < store.turns.begin(KEY, 1, 0.0, "calc")
    store.close()


def test_a_job_without_environments_writes_nothing(store, path):
    settle(store, open_round(store, 1, PROMPT))
    store.close()
    assert rows(path, "SELECT COUNT(*) FROM episodes UNION ALL SELECT COUNT(*) FROM turns") == [(0,), (0,)]
    assert rows(path, "SELECT * FROM sqlite_sequence") == []


# --- rounds ---


def two_turns_digests() -> list[bytes]:
    """Digests of the two sampled nodes of `two_turns`, each in its context."""
    logprobs = array("f", (-0.1 * token for token in (3, 5, 6)))
    first, second = Context().extended([1]), Context().extended([1, 3, 4])
    return [first.sampled([3], logprobs[:1]), second.sampled([5, 6], logprobs[1:])]


def test_a_closed_round_ties_its_responses_to_their_attempts(store, path):
    plan = open_round(store, 1, PROMPT)
    failed = generate(store, plan, KEY, ABORTED)
    store.trajectories.restart(1, KEY, 1)
    number = generate(store, plan, KEY)
    settle(store, plan)
    store.close()
    digest = trained_digest(two_turns_digests(), 1.0)
    assert rows(path, "SELECT id, step, loss, former FROM episodes ORDER BY id") == [
        (failed, None, None, 1),
        (number, 1, digest, 1),
    ]


def test_requests_go_when_their_round_closes(store):
    plan = open_round(store, 1, PROMPT, PromptKey(0, 1))
    numbers = [generate(store, plan, key) for key in plan.trajectories()]
    assert [one.body for number in numbers for one in store.turns.history(number)] == [b"{}"] * 4
    settle(store, plan, requeued=(PromptKey(0, 1),))
    assert [one.body for number in numbers for one in store.turns.history(number)] == [b""] * 4


def test_requests_go_when_their_update_closes(store):
    begin_asynchronous(store, PROMPT, PromptKey(0, 1))
    numbers = [collect(store, TrajectoryKey(PromptKey(0, one), 0)) for one in range(2)]
    update(store, 1, PROMPT)
    assert [[one.body for one in store.turns.history(number)] for number in numbers] == [[b""] * 2, [b"{}"] * 2]


def test_an_attempt_without_a_good_end_is_not_tied(store, path):
    plan = open_round(store, 1, PROMPT)
    generate(store, plan, KEY, ABORTED)
    settle(store, plan)
    store.close()
    assert rows(path, "SELECT step, loss FROM episodes") == [(None, None)]


def test_a_restarted_response_has_no_attempt_until_one_begins(store):
    plan = open_round(store, 1, PROMPT)
    generate(store, plan, KEY)
    assert store.turns.newest([KEY])[KEY].end == COMPLETED
    store.trajectories.restart(1, KEY, 1, "the reward failed")
    assert store.turns.newest([KEY]) == {}
    number = store.turns.begin(KEY, 1, 3.0, "calc")
    store.trajectories.restart(1, KEY, 2)
    assert store.turns.newest([KEY])[KEY].number == number, "it has not ended"


@pytest.mark.parametrize(("end", "failure"), [(ABORTED, "EnvironmentFailed"), (COMPLETED, "RewardFailed")])
def test_a_response_that_was_restarted_names_what_failed(store, end, failure):
    plan = open_round(store, 1, PROMPT)
    generate(store, plan, KEY, end)
    store.trajectories.restart(1, KEY, 3)
    # A later attempt that is not needed says nothing about it.
    store.turns.end(
        store.turns.begin(KEY, 1, 3.0, "calc"), EpisodeEnd(EndState.ABORTED, cause=AbortCause.NOT_NEEDED), 4.0
    )
    found = store.rounds.under_way()
    assert found is not None
    assert (found.saved[KEY].failures, found.saved[KEY].failure) == (3, failure)


@pytest.mark.parametrize(("end", "failure"), [(ABORTED, "EnvironmentFailed"), (COMPLETED, "RewardFailed")])
def test_a_response_of_a_group_names_what_failed(store, end, failure):
    begin_asynchronous(store, PROMPT)
    store.turns.end(store.turns.begin(KEY, 1, 0.0, "calc"), end, 1.0)
    store.experience.restart(KEY, 3)
    (group,) = store.experience.open_groups()
    assert (group.samples[KEY.sample].failures, group.samples[KEY.sample].failure) == (3, failure)


def test_a_prompt_that_is_drawn_again_begins_without_attempts(store):
    plan = open_round(store, 1, PROMPT, PromptKey(0, 1))
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    settle(store, plan, requeued=(PROMPT,))
    open_round(store, 2, PROMPT)
    assert store.turns.newest([KEY]) == {}
    assert store.turns.open_attempts() == []
    assert store.turns.begin(KEY, 2, 3.0, "calc") > number


def test_a_rewind_keeps_the_attempts_of_undone_rounds_as_former_ones(store, path):
    play_round(store, 1, PROMPT)
    play_round(store, 2, PromptKey(0, 1))
    open_round(store, 3, PromptKey(0, 2))
    third = TrajectoryKey(PromptKey(0, 2), 0)
    store.turns.begin(third, 3, 0.0, "calc")
    assert set(store.turns.newest([third])) == {third}
    assert store.rewind(1)
    assert store.turns.newest([third, TrajectoryKey(PromptKey(0, 1), 0)]) == {}
    assert store.turns.open_attempts() == []
    store.close()
    assert rows(path, "SELECT step, former FROM episodes ORDER BY id") == [(1, 1), (None, 1), (None, 1)]


def test_an_undone_response_is_tied_again(store, path):
    play_round(store, 1, PROMPT)
    store.rewind(0)
    open_round(store, 2, PromptKey(0, 5))
    store.rewind(0)
    again = open_round(store, 1, PROMPT, version=3)
    generate(store, again, KEY)
    settle(store, again)
    store.close()
    assert rows(path, "SELECT step FROM episodes ORDER BY id") == [(None,), (1,)]


def test_attempts_go_with_their_prompts(store, path):
    plan = open_round(store, 1, PROMPT, PromptKey(0, 1))
    for key in plan.trajectories():
        generate(store, plan, key)
    settle(store, plan, requeued=(PromptKey(0, 1),))
    play_round(store, 2, PromptKey(0, 1))
    play_round(store, 3, PromptKey(0, 2))
    assert store.prune(2)
    assert rows_of(store) == [(0, 1), (0, 1), (0, 2)], "a later round drew it again"
    assert store.prune(1)
    store.close()
    assert rows(path, "SELECT epoch, idx FROM episodes") == [(0, 2)]
    assert rows(path, "SELECT COUNT(*) FROM turns") == [(4,)]


def evaluate(store: Store, step: int, name: str = "check", end: EpisodeEnd | None = COMPLETED) -> TrajectoryKey:
    """Open an evaluation of the weights after `step`, and play an attempt of it."""
    store.evaluations.open(step, {name: "settings"})
    key = TrajectoryKey(evaluation_key(name, step, 0), 0)
    number = store.turns.begin(key, 1, 0.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], b"{}", 1.0)
    if end is not None:
        store.turns.end(number, end, 2.0)
    return key


def test_attempts_of_evaluations_go_with_the_boundary_of_their_weights(store, path):
    plays = [evaluate(store, 0)]
    store.evaluations.close(0, "check", "{}")
    for step in (1, 2, 3):
        play_round(store, step, PromptKey(0, step))
        plays.append(evaluate(store, step))
        store.evaluations.close(step, "check", "{}")
    assert store.turns.newest(plays) == {}, "it has ended"
    assert store._db.execute("SELECT COUNT(*) FROM turns WHERE body IS NOT NULL").fetchone() == (0,)
    kept = [[key.prompt.epoch for key in plays]]
    while store.prune(1):
        epochs = store._db.execute("SELECT epoch, idx FROM episodes WHERE epoch > 9 ORDER BY id").fetchall()
        kept.append([prompt_of(store._db, *row).epoch for row in epochs])
    assert kept == [[0, 1, 2, 3], [1, 2, 3], [2, 3]]


def test_an_open_evaluation_keeps_its_attempts(store):
    open_one = evaluate(store, 0, end=None)
    for step in (1, 2, 3):
        play_round(store, step, PromptKey(0, step))
    while store.prune(1):
        pass
    assert list(store.turns.newest([open_one])) == [open_one]


def test_an_evaluation_that_is_not_continued_has_no_attempts(store):
    play_round(store, 1, PromptKey(0, 1))
    first, other = evaluate(store, 0), evaluate(store, 0, "other")
    assert list(store.turns.newest([first, other])) == [other], "it is not due any more"
    later = evaluate(store, 1)
    assert list(store.turns.newest([first, other, later])) == [later]
    store.evaluations.open(1, {"check": "other settings"})
    assert store.turns.newest([later]) == {}, "it is generated again"
    again = evaluate(store, 1)
    store.rewind(0)
    assert store.turns.newest([again]) == {}, "its weights are abandoned"


def rows_of(store: Store) -> list[tuple[int, int]]:
    return store._db.execute("SELECT epoch, idx FROM episodes ORDER BY id").fetchall()


# --- updates ---


def test_an_update_ties_its_responses_and_a_rewind_unties_them(store, path):
    begin_asynchronous(store, PROMPT)
    number = collect(store, KEY)
    update(store, 1, PROMPT)
    digest = trained_digest(two_turns_digests(), 1.0)
    assert store._db.execute("SELECT id, step, loss FROM episodes").fetchall() == [(number, 1, digest)]
    store.rewind(0)
    assert store._db.execute("SELECT step, loss FROM episodes").fetchall() == [(None, None)]
    assert store.turns.newest([KEY])[KEY].number == number, "its group is ready again"
    update(store, 1, PROMPT)
    assert store._db.execute("SELECT id, step, loss FROM episodes").fetchall() == [(number, 1, digest)]


def test_a_group_that_is_generated_again_has_no_attempts(store):
    begin_asynchronous(store, PROMPT)
    collect(store, KEY)
    update(store, 1, PROMPT)
    assert store.experience.forget(1) is False
    store.rewind(0)
    assert store.experience.requeued() == (PROMPT,)
    assert store.turns.newest([KEY]) == {}


@pytest.mark.parametrize("outcome", [PromptOutcome.FILTERED, PromptOutcome.REQUEUED])
def test_an_ended_group_sets_its_attempts_aside(store, outcome):
    begin_asynchronous(store, PROMPT)
    store.turns.begin(KEY, 1, 0.0, "calc")
    store.experience.end((PROMPT,), outcome, "EnvironmentFailed")
    assert store.turns.newest([KEY]) == {}
    assert store.turns.open_attempts() == []


def test_attempts_go_with_their_groups(store):
    prompts = [PromptKey(0, one) for one in range(3)]
    begin_asynchronous(store, *prompts)
    for prompt in prompts:
        collect(store, TrajectoryKey(prompt, 0))
    for step, prompt in enumerate(prompts, 1):
        update(store, step, prompt)
    while store.experience.forget(3):
        pass
    assert store.prune(1)
    assert rows_of(store) == [(0, 1), (0, 2)]


def test_a_restart_sets_the_ended_attempt_of_a_group_aside(store):
    begin_asynchronous(store, PROMPT)
    number = store.turns.begin(KEY, 1, 0.0, "calc")
    store.turns.end(number, ABORTED, 1.0)
    store.experience.restart(KEY, 1)
    assert store.turns.newest([KEY]) == {}


def test_keys_of_named_sources_are_kept(store):
    key = TrajectoryKey(PromptKey(2, 7, "math"), 3)
    store.turns.begin(key, 1, 0.0, "calc")
    kept: KeptEpisode = store.turns.newest([key])[key]
    assert kept.key == key


def test_the_seconds_of_a_turn_are_kept(store):
    number = store.turns.begin(KEY, 1, 10.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 3)], b"one", 12.0, 11.0)
    store.turns.commit(number, [given(3, 2, 4), sampled(4, 3, 5)], b"two", 14.0)
    assert store.turns.newest([KEY])[KEY].spans == {2: TurnSpan(11.0, 12.0)}, "the second is of an earlier format"
