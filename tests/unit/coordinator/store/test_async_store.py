"""The store of groups refuses what would break an asynchronous run; rewinds and lost stores give back what they must.
What any order of calls leaves behind is in `test_coordinator_experience_machine`."""

import sqlite3
from collections.abc import Iterable

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.store import async_store
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.groups import NotOpen
from rljob_runtime.coordinator.trainer.recovery import reconcile_store_and_trainer, snapshot_at
from rljob_runtime.protocols import TrainerState
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.scheduling.round_plan import PromptOutcome
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from rljob_runtime.simulator.peers.observed_store import ObservedStore

A, B, C = (PromptKey(0, index) for index in (3, 1, 2))
FIRST = TrajectoryKey(A, 0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()), pool=Pool())
    store.versions.publish(1, 0)
    yield store
    store.close()


def keys_of(*prompts: PromptKey) -> list[TrajectoryKey]:
    return [TrajectoryKey(prompt, sample) for prompt in prompts for sample in range(2)]


def draw(store: Store, *prompts: PromptKey, version: int = 1, attempt: int = 1) -> None:
    """Given to rollout-0 and launched there."""
    cursor = max(store.experience.cursor(), Cursor(0, 1 + max(prompt.index for prompt in prompts)))
    store.experience.draw(prompts, cursor, version, "rollout-0", 2)
    store.experience.launched([(key, Lease("rollout-0", attempt)) for key in keys_of(*prompts)])


def generate(store: Store, *prompts: PromptKey, tokens: tuple[int, ...] = (5, 6)) -> None:
    """To their ends."""
    whole = [Tokens(key, 0, tokens, [-0.5] * len(tokens)) for key in keys_of(*prompts)]
    store.experience.finish(whole, finished(keys_of(*prompts)))


def finished(keys: Iterable[TrajectoryKey]) -> list[Response]:
    return [Response(key, 1, 1, (), (), FinishReason.STOP, "rollout-0") for key in keys]


def ready(store: Store, *prompts: PromptKey) -> None:
    draw(store, *prompts)
    generate(store, *prompts)
    assert store.experience.score([(key, 1.0) for key in keys_of(*prompts)]) == prompts


def test_a_group_of_an_evaluation_is_refused_and_the_cursor_stays(store):
    before = store.experience.cursor()
    with pytest.raises(sqlite3.IntegrityError, match=r"evaluation:held/1\.0 belongs to an evaluation, which is never"):
        draw(store, A, evaluation_key("held", 1, 0))
    assert store.experience.cursor() == before
    assert store.experience.open_groups() == ()
    draw(store, A)
    assert len(store.experience.open_groups()) == 1


def train(store: Store, *prompts: PromptKey) -> int:
    """The next update, on these ready groups."""
    step = store.boundaries.newest().step + 1
    store.experience.assign(step, prompts)
    store.experience.close_update(Boundary(step, store.experience.cursor()))
    return step


def requeue(store: Store, *prompts: PromptKey) -> None:
    store.experience.end(prompts, PromptOutcome.REQUEUED, "VersionGone")


# --- what is refused ---


def drawn_while_open(store: Store) -> None:
    draw(store, A)
    draw(store, A)


def drawn_after_it_was_trained_on(store: Store) -> None:
    ready(store, A)
    train(store, A)
    draw(store, A)


def drawn_after_it_was_filtered(store: Store) -> None:
    draw(store, A)
    store.experience.end([A], PromptOutcome.FILTERED, "EqualRewards")
    draw(store, A)


def drawn_with_an_unpublished_version(store: Store) -> None:
    draw(store, A, version=2)


def a_cursor_that_goes_back(store: Store) -> None:
    draw(store, A)
    store.experience.draw([B], Cursor(0, 2), 1, "rollout-0", 2)


def another_version(store: Store) -> None:
    store.versions.publish(2, 0)
    draw(store, A)
    store._db.execute("UPDATE groups SET version = 2")


def an_attempt_that_falls(store: Store) -> None:
    draw(store, A, attempt=2)
    store.experience.launched([(FIRST, Lease("rollout-0", 1))])


def an_attempt_that_falls_by_a_move(store: Store) -> None:
    draw(store, A, attempt=2)
    store.experience.move(FIRST, Lease("rollout-1", 1), 0)


def an_attempt_that_falls_in_a_later_draw(store: Store) -> None:
    draw(store, A, attempt=2)
    requeue(store, A)
    draw(store, A, attempt=1)


def attempts_forgotten_by_a_later_draw(store: Store) -> None:
    draw(store, A, attempt=2)
    requeue(store, A)
    store._db.execute(
        "INSERT INTO groups (epoch, idx, draw, drawn, version, replica) VALUES (0, 3, 1, 9, 1, 'rollout-0')"
    )
    store._db.execute("INSERT INTO samples (epoch, idx, draw, sample) VALUES (0, 3, 1, 0)")


def a_draw_left_out(store: Store) -> None:
    store._db.execute(
        "INSERT INTO groups (epoch, idx, draw, drawn, version, replica) VALUES (0, 3, 1, 9, 1, 'rollout-0')"
    )


def a_hole(store: Store) -> None:
    draw(store, A)
    store.experience.append([Tokens(FIRST, 0, (5, 6), (-1.0, -2.0))])
    store.experience.append([Tokens(FIRST, 3, (7,), (-1.0,))])


def tokens_twice(store: Store) -> None:
    draw(store, A)
    for _ in range(2):
        store.experience.append([Tokens(FIRST, 0, (5, 6), (-1.0, -2.0))])


def tokens_of_the_source_after_a_move(store: Store) -> None:
    draw(store, A)
    store.experience.append([Tokens(FIRST, 0, (5, 6, 7), (-1.0, -2.0, -3.0))])
    store.experience.move(FIRST, Lease("rollout-1", 2), 1)
    store.experience.append([Tokens(FIRST, 3, (8,), (-1.0,))])


def tokens_without_logprobs(store: Store) -> None:
    draw(store, A)
    store.experience.append([Tokens(FIRST, 0, (7, 8), (-1.0,))])


def tokens_after_the_end(store: Store) -> None:
    draw(store, A)
    generate(store, A)
    store.experience.append([Tokens(FIRST, 2, (7,), (-1.0,))])


def a_reward_before_the_end(store: Store) -> None:
    draw(store, A)
    store.experience.score([(FIRST, 1.0)])


def another_reward(store: Store) -> None:
    ready(store, A)
    store.experience.score([(FIRST, 0.0)])


def a_launch_in_a_ready_group(store: Store) -> None:
    ready(store, A)
    store.experience.launched([(FIRST, Lease("rollout-1", 2))])


def restarted_in_a_ready_group(store: Store) -> None:
    ready(store, A)
    store.experience.restart(FIRST, 1)


def ready_before_it_is_scored(store: Store) -> None:
    draw(store, A)
    generate(store, A)
    store.experience.score([(FIRST, 1.0)])
    store._db.execute("UPDATE groups SET ready = 1")


def assigned_before_it_is_ready(store: Store) -> None:
    draw(store, A)
    generate(store, A)
    store.experience.score([(FIRST, 1.0)])
    store.experience.assign(1, [A])


def assigned_twice(store: Store) -> None:
    ready(store, A)
    for _ in range(2):
        store.experience.assign(1, [A])


def assigned_to_a_later_update(store: Store) -> None:
    ready(store, A)
    store.experience.assign(2, [A])


def freed_without_a_rewind(store: Store) -> None:
    ready(store, A)
    train(store, A)
    store._db.execute("UPDATE groups SET step = NULL, place = NULL")


def trained_and_then_not(store: Store) -> None:
    ready(store, A)
    train(store, A)
    store._db.execute("UPDATE groups SET fate = NULL")


def ended_while_assigned(store: Store) -> None:
    ready(store, A)
    store.experience.assign(1, [A])
    requeue(store, A)


def ended_without_a_reason(store: Store) -> None:
    draw(store, A)
    store.experience.end([A], PromptOutcome.FILTERED, None)


def trained_without_an_update(store: Store) -> None:
    ready(store, A)
    store._db.execute("UPDATE groups SET fate = 'trained'")


def another_outcome(store: Store) -> None:
    draw(store, A)
    requeue(store, A)
    store._db.execute("UPDATE groups SET fate = NULL, queued = NULL")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (drawn_while_open, "a prompt is drawn again only after it was requeued"),
        (drawn_after_it_was_trained_on, "a prompt is drawn again only after it was requeued"),
        (drawn_after_it_was_filtered, "a prompt is drawn again only after it was requeued"),
        (drawn_with_an_unpublished_version, "FOREIGN KEY constraint failed"),
        (a_cursor_that_goes_back, "the cursor of the pool never goes back"),
        (another_version, "a group has one weight version"),
        (an_attempt_that_falls, "an attempt never falls"),
        (an_attempt_that_falls_by_a_move, "an attempt never falls"),
        (an_attempt_that_falls_in_a_later_draw, "an attempt never falls"),
        (attempts_forgotten_by_a_later_draw, "an attempt never falls"),
        (a_draw_left_out, "the draws of a prompt are counted without a hole"),
        (a_hole, "tokens are appended without a hole"),
        (tokens_twice, "tokens are appended without a hole"),
        (tokens_of_the_source_after_a_move, "tokens are appended without a hole"),
        (tokens_without_logprobs, "CHECK constraint failed"),
        (tokens_after_the_end, "a finished response has all of its tokens"),
        (a_reward_before_the_end, "CHECK constraint failed"),
        (another_reward, "a group that is ready or ended does not change"),
        (a_launch_in_a_ready_group, "a group that is ready or ended does not change"),
        (restarted_in_a_ready_group, "a group that is ready or ended does not change"),
        (ready_before_it_is_scored, "a group is ready once, when all of its responses are scored"),
        (assigned_before_it_is_ready, "CHECK constraint failed"),
        (assigned_twice, "a group is assigned to one update"),
        (assigned_to_a_later_update, "groups are assigned to the next update"),
        (freed_without_a_rewind, "a group is assigned to one update"),
        (trained_and_then_not, "a group has one fate"),
        (ended_while_assigned, "CHECK constraint failed"),
        (ended_without_a_reason, "CHECK constraint failed"),
        (trained_without_an_update, "CHECK constraint failed"),
        (another_outcome, "a group has one fate"),
    ],
)
def test_the_store_refuses(store, mistake, message):
    with pytest.raises(sqlite3.IntegrityError, match=message):
        mistake(store)


def test_an_update_is_closed_with_all_that_was_assigned_to_it(store):
    ready(store, A)
    store.experience.assign(1, [A])
    with pytest.raises(sqlite3.IntegrityError, match="what was assigned to an update is trained on when it is closed"):
        store._db.execute("INSERT INTO boundaries (step, epoch, position) VALUES (1, 0, 0)")


def test_what_is_refused_changes_nothing(store):
    draw(store, A)
    with pytest.raises(sqlite3.IntegrityError):
        store.experience.append([Tokens(FIRST, 0, (5,), (-1.0,)), Tokens(TrajectoryKey(A, 1), 1, (5,), (-1.0,))])
    assert not store.experience.partial(FIRST).token_ids
    with pytest.raises(sqlite3.IntegrityError):
        store.experience.draw([B, A], Cursor(0, 9), 1, "rollout-0", 2)
    assert store.experience.cursor() == Cursor(0, 4)
    assert [group.prompt for group in store.experience.open_groups()] == [A]


@pytest.mark.parametrize("before", [lambda store: None, lambda store: (draw(store, A), requeue(store, A))])
def test_a_prompt_without_an_open_group_is_refused_by_name(store, before):
    before(store)
    experience = store.experience
    for call in (
        lambda: experience.launched([(FIRST, Lease("rollout-0", 3))]),
        lambda: experience.append([Tokens(FIRST, 0, (5,), (-1.0,))]),
        lambda: experience.finish([], finished([FIRST])),
        lambda: experience.score([(FIRST, 1.0)]),
        lambda: experience.restart(FIRST, 1),
        lambda: experience.move(FIRST, Lease("rollout-0", 3), 0),
        lambda: experience.assign(1, [A]),
        lambda: experience.groups([A]),
        lambda: experience.partial(FIRST),
        lambda: requeue(store, A),
    ):
        with pytest.raises(NotOpen, match=r"prompt 0\.3 has no open group"):
            call()


# --- groups ---


@pytest.mark.parametrize("offset", range(7))
def test_a_move_cuts_at_its_offset_and_goes_on_from_there(store, offset):
    draw(store, A)
    truth, logprobs = [5, 6, 7, 8, 9, 10], [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    for start, end in ((0, 2), (2, 5), (5, 6)):
        store.experience.append([Tokens(FIRST, start, truth[start:end], logprobs[start:end])])
    store.experience.move(FIRST, Lease("rollout-1", 2), offset)
    store.experience.append([Tokens(FIRST, offset, (11,), (-7.0,))])
    partial = store.experience.partial(FIRST)
    assert partial.token_ids.tolist() == [*truth[:offset], 11]
    assert partial.logprobs.tolist() == [*logprobs[:offset], -7.0]
    assert (partial.lease, partial.weight_version) == (Lease("rollout-1", 2), 1)
    (group,) = store.experience.groups([A])
    first = group.samples[0]
    assert (group.replica, first.replica, first.attempt, first.tokens) == ("rollout-0", "rollout-1", 2, offset + 1)


def test_groups_are_ready_in_the_order_of_their_last_rewards(store):
    draw(store, A, B)
    generate(store, A, B)
    rewards = [(key, float(key.sample)) for key in keys_of(A, B)]
    assert store.experience.score(rewards[:1]) == ()
    assert store.experience.score([rewards[2], rewards[3], rewards[1]]) == (B, A)
    assert [(group.prompt, group.ready) for group in store.experience.open_groups()] == [(A, 2), (B, 1)]
    first, second = store.experience.responses(A)
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert (second.response.key, second.response.token_ids.tolist()) == (TrajectoryKey(A, 1), [5, 6])
    assert second.response.logprobs.tolist() == [-0.5, -0.5]


def test_a_restarted_response_has_no_tokens_and_counts_its_failures(store):
    draw(store, A)
    generate(store, A)
    store.experience.score([(FIRST, 1.0)])
    store.experience.restart(FIRST, 1)
    (group,) = store.experience.groups([A])
    assert (group.samples[0].failures, group.samples[0].finish, group.samples[0].reward) == (1, None, None)
    assert [sample.tokens for sample in group.samples] == [0, 2]


def test_requeued_prompts_wait_in_the_order_in_which_they_were_requeued(store):
    draw(store, A, B, C)
    requeue(store, C)
    requeue(store, A)
    assert store.experience.requeued() == (C, A)
    assert store.experience.unsettled() == (A, B, C)
    assert store.experience.draw([C], Cursor(0, 4), 1, "rollout-1", 2) == dict.fromkeys(keys_of(C), 1)
    assert store.experience.requeued() == (A,)
    requeue(store, C)
    assert store.experience.requeued() == (A, C)


def test_of_what_ended_only_the_number_of_tokens_stays(store):
    ready(store, A, B)
    draw(store, C)
    store.experience.append([Tokens(TrajectoryKey(C, 0), 0, (1, 2, 3), (-1.0, -1.0, -1.0))])
    requeue(store, C)
    train(store, A)
    train(store, B)
    store.experience.forget(1)
    assert held(store) == {B.index: 2}
    counts = store._db.execute("SELECT idx, sample, tokens FROM samples ORDER BY 1, 2").fetchall()
    assert counts == [(1, 0, None), (1, 1, None), (2, 0, 3), (2, 1, 0), (3, 0, 2), (3, 1, 2)]


def held(store: Store) -> dict[int, int]:
    """Chunks, by the index of their prompt."""
    return dict(store._db.execute("SELECT idx, COUNT(*) FROM experience_chunks GROUP BY 1").fetchall())


def test_tokens_that_are_needed_no_more_go_in_pieces(store, monkeypatch):
    """One group at least is in each, none in two."""
    ready(store, A, B, C)
    train(store, A, B)
    train(store, C)
    monkeypatch.setattr(async_store, "FORGOTTEN_CHUNKS", 1)
    assert store.experience.forget(1)
    assert sorted(held(store).values()) == [2, 2]
    assert store.experience.forget(1)
    assert held(store) == {C.index: 2}
    assert not store.experience.forget(1)
    monkeypatch.setattr(async_store, "FORGOTTEN_GROUPS", 1)
    assert store.experience.forget(2)
    assert not store.experience.forget(2)
    assert held(store) == {}


def test_what_a_crash_leaves_between_two_pieces_is_whole_and_goes_later(tmp_path, monkeypatch):
    monkeypatch.setattr(async_store, "FORGOTTEN_CHUNKS", 1)

    def crashed(name: str) -> Store:
        """Two updates done, and the first piece of the first one gone."""
        store = Store(tmp_path / name, "uid-1")
        store.start_at(Boundary(0, Cursor()), pool=Pool())
        store.versions.publish(1, 0)
        ready(store, A, B, C)
        train(store, A, B)
        train(store, C)
        assert store.experience.forget(1)
        store.close()
        return Store(tmp_path / name, "uid-1")

    store = crashed("goes-on")
    assert store.rewind(1)
    assert len(store.experience.responses(C)) == 2
    train(store, C)
    while store.experience.forget(2):
        pass
    assert held(store) == {}
    store.close()
    store = crashed("goes-back-further")
    assert store.rewind(0)
    (gone,) = store.experience.requeued()
    assert {group.prompt for group in store.experience.open_groups()} == {A, B, C} - {gone}
    for group in store.experience.open_groups():
        tokens = [response.response.token_ids.tolist() for response in store.experience.responses(group.prompt)]
        assert tokens == [[5, 6], [5, 6]]
    store.close()


# --- history ---


def test_a_rewind_gives_back_what_later_updates_took(store):
    ready(store, A, B, C)
    train(store, B)
    store.versions.publish(2, 1)
    train(store, C, A)
    store.experience.forget(1)
    assert store.experience.assigned(2) == (C, A)
    assert store.rewind(1)
    assert store.experience.outcomes() == {"open": 2, "trained": 1}
    assert [(group.prompt, group.ready, group.step) for group in store.experience.open_groups()] == [
        (A, 1, None),
        (C, 3, None),
    ]
    assert len(store.experience.responses(A)) == 2
    assert store.experience.assigned(2) == ()
    train(store, A)
    assert store.experience.outcomes() == {"open": 1, "trained": 2}


def test_a_rewind_frees_what_was_assigned_to_the_update_under_way(store):
    ready(store, A, B)
    train(store, A)
    store.experience.assign(2, [B])
    assert store.rewind(0)
    assert store.experience.assigned(2) == ()
    store.experience.assign(1, [B])


def test_a_rewind_before_the_last_checkpoint_draws_lost_prompts_again(store):
    ready(store, A, B)
    train(store, A)
    train(store, B)
    store.experience.forget(1)
    assert store.rewind(0)
    assert store.experience.requeued() == (A,)
    assert [group.prompt for group in store.experience.open_groups()] == [B]
    draw(store, A, attempt=2)


def test_groups_of_lost_versions_stay(store):
    store.versions.publish(2, 1)
    train(store)
    draw(store, A, version=2)
    assert store.rewind(0)
    assert store.versions.used().history[1].abandoned
    (group,) = store.experience.open_groups()
    assert group.version == 2


# --- with the trainer ---


def found(step: int, snapshot: str | None = None) -> TrainerState:
    return TrainerState(step, None, 1, {}, step, snapshot)


def test_an_update_whose_answer_was_lost_is_trained_again(store):
    ready(store, A)
    store.experience.assign(1, [A])
    boundary = reconcile_store_and_trainer(store, found(1), SimulatedPrompts(), 4, Mode.ASYNCHRONOUS)
    assert boundary.step == 0
    assert store.experience.assigned(1) == (A,)


def test_a_new_history_draws_again_what_a_checkpoint_had_under_way(store, tmp_path):
    draw(store, B)
    ready(store, A)
    ready(store, C)
    requeue(store, B)
    step = train(store, A)
    snapshot = snapshot_at(store, step)
    assert (snapshot.cursor, snapshot.queue) == (Cursor(0, 4), (B, C))
    new = Store(tmp_path / "new.db", "uid-1")
    begun = reconcile_store_and_trainer(new, found(step, snapshot.to_json()), SimulatedPrompts(), 4, Mode.ASYNCHRONOUS)
    assert (begun.step, begun.queue) == (1, ())
    assert (new.experience.cursor(), new.experience.requeued()) == (Cursor(0, 4), (B, C))
    assert snapshot_at(new, step) == snapshot
    new.versions.publish(new.versions.used().next_version(), 1)
    assert new.experience.draw([C], Cursor(0, 4), new.versions.used().history[-1].version, "rollout-0", 2) == {}
    assert new.experience.requeued() == (B,)
    new.close()


def test_a_store_of_rounds_has_no_pool(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    reconcile_store_and_trainer(store, found(0), SimulatedPrompts(), 4)
    assert not store.experience.in_use()
    store.close()
    other = Store(tmp_path / "other.db", "uid-1")
    reconcile_store_and_trainer(other, found(0), SimulatedPrompts(), 4, Mode.ASYNCHRONOUS)
    assert other.experience.in_use()
    other.close()


def test_observers_hear_of_groups(tmp_path):
    rows = []
    store = ObservedStore(tmp_path / "state.db", "uid-1", lambda event: rows.extend(event.rows))
    store.start_at(Boundary(0, Cursor()), pool=Pool())
    store.versions.publish(1, 0)
    ready(store, A)
    train(store, A)
    store.notify()
    store.close()
    told = {row.table: row for row in rows}
    assert told["groups"].identity == (0, 3, 0)
    assert told["groups"].values == (1, "rollout-0", 1, 1, "trained", None)
    assert told["samples"].values == (1, 0, "rollout-0", "stop", 1.0, None)
    assert told["experience_chunks"].values == (2,)
    assert told["pool"].values == (0, 4)


# --- lengths ---


def filtered(store: Store, *prompts: PromptKey) -> None:
    store.experience.end(prompts, PromptOutcome.FILTERED, "EqualRewards")


def lengths(store: Store) -> dict[int, list[PromptKey]]:
    return {step: [one.prompt for one in store.lengths(step)] for step in (1, 2, 3)}


def test_a_filtered_group_counts_in_the_update_under_way(store):
    """Whatever was drawn before and after it: an earlier update has its file already."""
    first, second, third, early, late, last = (PromptKey(0, index) for index in range(6))
    ready(store, early, late, last, first)
    filtered(store, early)
    train(store, first)
    assert lengths(store) == {1: [early, first], 2: [], 3: []}
    ready(store, second, third)
    filtered(store, late)
    train(store, second)
    assert lengths(store) == {1: [early, first], 2: [late, second], 3: []}
    assert store.experience.count_late() is None
    filtered(store, last)
    assert store.experience.count_late() == 2
    assert store.experience.count_late() is None
    train(store, third)
    assert lengths(store) == {1: [early, first], 2: [late, last, second], 3: [third]}


def test_what_is_filtered_before_the_first_update_waits_for_it(store):
    first, late = PromptKey(0, 0), PromptKey(0, 1)
    ready(store, first, late)
    filtered(store, late)
    assert store.experience.count_late() is None
    train(store, first)
    assert lengths(store)[1] == [first, late]
