"""The state store refuses what would break the run, and gives back a round as it was left."""

import shutil
import sqlite3
from dataclasses import replace

import pytest

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.store import store as store_module
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.rounds import LOAN_RATES, SWITCH_COSTS
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.switch_costs import ENOUGH, Part, SwitchCosts
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.scheduling.round_plan import (
    PromptOutcome,
    RestoredSample,
    RoundOutcome,
    RoundPlan,
    RoundRules,
    RoundShape,
)

PROMPTS = (PromptKey(0, 3), PromptKey(0, 1))
FIRST = TrajectoryKey(PROMPTS[0], 0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    store.versions.publish(1, 0)
    yield store
    store.close()


def plan_of(step: int = 1, version: int = 1, prompts: tuple[PromptKey, ...] = PROMPTS) -> RoundPlan:
    return RoundPlan(step, version, RoundShape(RoundKind.LONG, 2, 2, 2, 2), prompts)


def settlement(outcome: PromptOutcome = PromptOutcome.TRAINED) -> RoundOutcome:
    if outcome is PromptOutcome.TRAINED:
        return RoundOutcome(PROMPTS, dict.fromkeys(PROMPTS, outcome), {}, plan_of().trajectories())
    return RoundOutcome((), dict.fromkeys(PROMPTS, outcome), dict.fromkeys(PROMPTS, "RewardFailed"))


def launch(store: Store, plan: RoundPlan, attempt: int = 1) -> None:
    leases = [(key, Lease("rollout-0", attempt)) for key in plan.trajectories()]
    store.trajectories.launched(plan.step, plan.version, leases)


def finish(store: Store, plan: RoundPlan) -> None:
    keys = plan.trajectories()
    tokens = [Tokens(key, 0, (5, 6), (-1.0, -2.0)) for key in keys]
    responses = [Response(k, 1, plan.version, (5, 6), (-1.0, -2.0), FinishReason.STOP, "rollout-0") for k in keys]
    store.trajectories.finish(plan.step, tokens, responses)


def generate(store: Store, plan: RoundPlan, *, score: bool = True) -> RoundPlan:
    """Open the round and bring its responses to their end, with their rewards."""
    store.rounds.open(plan, Cursor(0, 2 * plan.step))
    launch(store, plan)
    finish(store, plan)
    for key in plan.trajectories() if score else ():
        store.trajectories.score(plan.step, key, 1.0)
    return plan


def train(store: Store, plan: RoundPlan) -> None:
    """The whole round, as the coordinator does it."""
    generate(store, plan)
    store.trajectories.assign(plan.step, plan.trajectories())
    store.rounds.close(settlement(), Boundary(plan.step, Cursor(0, 2 * plan.step)))


def test_a_round_with_an_evaluation_prompt_is_refused_and_not_stored(store):
    plan = plan_of(prompts=(PROMPTS[0], evaluation_key("held", 1, 0)))
    with pytest.raises(sqlite3.IntegrityError, match=r"evaluation:held/1\.0 belongs to an evaluation, which is never"):
        store.rounds.open(plan, Cursor(0, 2))
    assert not store.rounds.is_open()
    store.rounds.open(plan_of(), Cursor(0, 2))
    assert store.rounds.is_open()


def test_costs_of_switches_are_those_of_the_newest_boundary(store: Store) -> None:
    measured = []
    for step in (1, 2, 3):
        costs = SwitchCosts()
        for _ in range(ENOUGH):
            costs.record(1, 2, Part.LOAD, 1, step)
        measured.append(costs.to_json())
    assert store.rounds.switch_costs("").to_json() == SwitchCosts().to_json()
    train(store, plan_of())
    assert store.rounds.switch_costs("").to_json() == SwitchCosts().to_json(), "of a job that does not switch"
    for step in (2, 3):
        prompts = tuple(PromptKey(step, prompt.index) for prompt in PROMPTS)
        plan = generate(store, plan_of(step, prompts=prompts))
        store.trajectories.assign(step, plan.trajectories())
        outcome = RoundOutcome(prompts, dict.fromkeys(prompts, PromptOutcome.TRAINED), {}, plan.trajectories())
        store.rounds.close(outcome, Boundary(step, Cursor(0, 2 * step)), measured={SWITCH_COSTS: measured[step - 1]})
        assert store.rounds.switch_costs("").unit(1, 2, Part.LOAD) == step
    store.rewind(2)
    assert store.rounds.switch_costs("").unit(1, 2, Part.LOAD) == 2, "a rewind forgets undone rounds"


def not_assigned(store: Store) -> None:
    generate(store, plan_of())
    store.rounds.close(settlement(), Boundary(1, Cursor()))


def assigned_in_part(store: Store) -> None:
    generate(store, plan_of())
    store.trajectories.assign(1, plan_of().trajectories()[:3])
    store.rounds.close(settlement(), Boundary(1, Cursor()))


def not_scored(store: Store) -> None:
    generate(store, plan_of(), score=False)
    store.trajectories.assign(1, plan_of().trajectories())
    store.rounds.close(settlement(), Boundary(1, Cursor()))


def assigned_twice(store: Store) -> None:
    generate(store, plan_of())
    for _ in range(2):
        store.trajectories.assign(1, [FIRST])


def drawn_twice(store: Store) -> None:
    train(store, plan_of())
    store.versions.publish(2, 1)
    store.rounds.open(plan_of(2, 2), Cursor(0, 4))


def drawn_twice_in_a_round(store: Store) -> None:
    store.rounds.open(plan_of(), Cursor(0, 2))
    store.rounds.extend(plan_of(), PROMPTS[:1], Cursor(0, 3))


def requeue(store: Store, queue: tuple[PromptKey, ...] = PROMPTS, kept: tuple[TrajectoryKey, ...] = ()) -> None:
    """A first round that both prompts lose."""
    generate(store, plan_of())
    store.trajectories.assign(1, kept)
    lost = RoundOutcome((), dict.fromkeys(PROMPTS, PromptOutcome.REQUEUED), dict.fromkeys(PROMPTS, "RaceLost"), kept)
    store.rounds.close(lost, Boundary(1, Cursor(0, 2), queue=queue))
    store.versions.publish(2, 1)


def trained_in_two_rounds(store: Store) -> None:
    requeue(store, kept=(FIRST,))
    generate(store, plan_of(2, 2))
    store.trajectories.assign(2, [FIRST])


def requeued_without_a_reason(store: Store) -> None:
    generate(store, plan_of())
    store.rounds.close(
        RoundOutcome((), dict.fromkeys(PROMPTS, PromptOutcome.REQUEUED)), Boundary(1, Cursor(), queue=PROMPTS)
    )


def not_in_the_queue(store: Store) -> None:
    requeue(store, queue=PROMPTS[:1])


def gone_from_the_queue(store: Store) -> None:
    requeue(store)
    other = plan_of(2, 2, (PROMPTS[0], PromptKey(0, 9)))
    generate(store, other)
    store.trajectories.assign(2, other.trajectories())
    both = RoundOutcome(other.prompts, dict.fromkeys(other.prompts, PromptOutcome.TRAINED), {}, other.trajectories())
    store.rounds.close(both, Boundary(2, Cursor(0, 3)))


def another_outcome(store: Store) -> None:
    train(store, plan_of())
    store.rounds.close(settlement(PromptOutcome.FILTERED), Boundary(1, Cursor()))


def closed_with_prompts_open(store: Store) -> None:
    generate(store, plan_of())
    store.rounds.close(RoundOutcome(()), Boundary(1, Cursor()))


def a_round_left_out(store: Store) -> None:
    store.rounds.close(RoundOutcome(()), Boundary(2, Cursor()))


def version_used_twice(store: Store) -> None:
    store.versions.publish(2, 1)
    store.rewind(0)
    store.versions.publish(2, 1)


def an_anchor_falls(store: Store) -> None:
    generate(store, plan_of())
    store.trajectories.assign(1, plan_of().trajectories())
    store.rounds.close(settlement(), Boundary(1, Cursor(0, 2)), {"code": {"7/0": 2000}})
    store.rounds.close(RoundOutcome(()), Boundary(2, Cursor(0, 2)), {"code": {"7/0": 1999}})


def attempt_falls(store: Store) -> None:
    store.rounds.open(plan_of(), Cursor())
    launch(store, plan_of(), 2)
    launch(store, plan_of(), 1)


def two_versions(store: Store) -> None:
    store.versions.publish(2, 1)
    store.rounds.open(plan_of(), Cursor())
    launch(store, plan_of())
    launch(store, plan_of(version=2), 2)


def a_hole(store: Store) -> None:
    generate(store, plan_of())
    store.trajectories.append(1, [Tokens(FIRST, 3, (7,), (-1.0,))])


def tokens_without_logprobs(store: Store) -> None:
    generate(store, plan_of())
    store.trajectories.append(1, [Tokens(FIRST, 2, (7, 8), (-1.0,))])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (not_assigned, "only what was assigned to the step is trained on"),
        (assigned_in_part, "only what was assigned to the step is trained on"),
        (not_scored, "CHECK constraint failed"),
        (assigned_twice, "UNIQUE constraint failed: assigned"),
        (drawn_twice, "a prompt is drawn again only after it was requeued"),
        (drawn_twice_in_a_round, "a prompt is drawn again only after it was requeued"),
        (trained_in_two_rounds, "UNIQUE constraint failed: assigned"),
        (requeued_without_a_reason, "CHECK constraint failed"),
        (not_in_the_queue, "a requeued prompt is in the long-prompt queue"),
        (gone_from_the_queue, "a prompt leaves the long-prompt queue by being drawn"),
        (another_outcome, "a prompt has one fate"),
        (closed_with_prompts_open, "every prompt has a fate"),
        (a_round_left_out, "rounds follow each other"),
        (version_used_twice, "a weight version is never used twice"),
        (an_anchor_falls, "the anchor of a timeout only rises"),
        (attempt_falls, "an attempt never falls"),
        (two_versions, "a trajectory has one weight version"),
        (a_hole, "tokens are appended without a hole"),
        (tokens_without_logprobs, "CHECK constraint failed"),
    ],
)
def test_the_store_refuses(store, mistake, message):
    with pytest.raises(sqlite3.IntegrityError, match=message):
        mistake(store)


def test_what_is_refused_changes_nothing(store):
    with pytest.raises(sqlite3.IntegrityError):
        assigned_in_part(store)
    assert store.trajectories.outcomes() == {"open": 4}
    assert store.boundaries.newest().step == 0
    assert store.rounds.under_way().partials.keys() == set(plan_of().trajectories())


def test_a_round_under_way_is_found_as_it_was_left(store, tmp_path):
    store.rounds.open(plan_of(), Cursor(0, 2))
    launch(store, plan_of(), 3)
    store.trajectories.append(1, [Tokens(FIRST, 0, (5, 6), (-1.0, -2.0))])
    store.trajectories.append(1, [Tokens(FIRST, 2, (7,), (-3.0,))])
    store.close()
    reopened = Store(tmp_path / "state.db", "uid-1")
    found = reopened.rounds.under_way()
    reopened.close()
    assert (found.plan.prompts, found.plan.version, found.cursor) == (PROMPTS, 1, Cursor(0, 2))
    assert found.saved[FIRST] == RestoredSample(attempt=3)
    partial = found.partials.pop(FIRST)
    assert (partial.token_ids.tolist(), partial.logprobs.tolist(), partial.lease) == (
        [5, 6, 7],
        [-1.0, -2.0, -3.0],
        Lease("rollout-0", 3),
    )
    assert not found.partials
    assert not found.assigned


def test_a_round_is_found_with_its_shape_its_rules_and_what_it_drew_later(store):
    third = PromptKey(0, 7)
    plan = replace(
        plan_of(), shape=RoundShape(RoundKind.SHORT, 2, 3, 1, 2), rules=RoundRules(5, drop_equal=True, max_prompts=9)
    )
    store.rounds.open(plan, Cursor(0, 2))
    store.rounds.extend(plan, [third], Cursor(0, 3))
    found = store.rounds.under_way()
    assert found.plan == replace(plan, prompts=(*PROMPTS, third))
    assert found.cursor == Cursor(0, 3)
    assert found.saved.keys() == set(found.plan.trajectories())
    assert len(found.saved) == 9


def test_a_requeued_prompt_is_drawn_again_and_its_attempts_go_on_rising(store):
    requeue(store)
    assert store.boundaries.newest().queue == PROMPTS
    known = store.rounds.open(plan_of(2, 2), Cursor(0, 2))
    assert known == dict.fromkeys(plan_of().trajectories(), RestoredSample(attempt=1))
    assert store.rounds.under_way().saved == known
    launch(store, plan_of(2, 2), 2)
    with pytest.raises(sqlite3.IntegrityError, match="an attempt never falls"):
        launch(store, plan_of(2, 2), 1)


def test_a_rewind_restores_the_queue_of_that_round(store):
    requeue(store)
    plan = generate(store, plan_of(2, 2))
    store.trajectories.assign(2, plan.trajectories())
    store.rounds.close(settlement(), Boundary(2, Cursor(0, 2)))
    assert store.boundaries.newest().queue == ()
    made = store.trajectories.tokens_after(1)
    assert made > 0
    assert store.rewind(1)
    assert store.boundaries.newest().queue == PROMPTS
    assert store.boundaries.newest().totals.lost_version_tokens == made, "what the undone round had generated"
    assert store.trajectories.tokens_after(1) == 0
    store.versions.publish(3, 1)
    store.rounds.open(plan_of(2, 3), Cursor(0, 2))


def test_anchors_go_back_with_their_round(store):
    generate(store, plan_of())
    store.trajectories.assign(1, plan_of().trajectories())
    store.rounds.close(settlement(), Boundary(1, Cursor(0, 2)), {"code": {"7/0": 2000, "7/1": 5}})
    assert store.boundaries.anchors() == {"code": {"7/0": 2000, "7/1": 5}}
    store.versions.publish(2, 1)
    plan = plan_of(2, 2, (PromptKey(0, 8), PromptKey(0, 9)))
    generate(store, plan)
    store.trajectories.assign(2, plan.trajectories())
    both = RoundOutcome(plan.prompts, dict.fromkeys(plan.prompts, PromptOutcome.TRAINED), {}, plan.trajectories())
    store.rounds.close(both, Boundary(2, Cursor(0, 4)), {"code": {"7/0": 3000}, "more": {"7/0": 1}})
    assert store.boundaries.anchors() == {"code": {"7/0": 3000, "7/1": 5}, "more": {"7/0": 1}}
    assert store.rewind(1)
    assert store.boundaries.anchors() == {"code": {"7/0": 2000, "7/1": 5}}


def test_a_rewind_loses_the_versions_and_frees_the_prompts(store):
    train(store, plan_of())
    store.versions.publish(2, 1)
    assert store.rewind(0)
    assert [(entry.version, entry.abandoned) for entry in store.versions.used().history] == [(1, False), (2, True)]
    assert (store.trajectories.outcomes(), store.boundaries.newest().step) == ({}, 0)
    train(store, plan_of())
    assert store.trajectories.outcomes() == {"trained": 4}
    assert not store.rewind(7)


def test_terms_only_rise(store):
    assert [store.adopt_term(term) for term in (1, 1, 7, 3)] == [1, 2, 7, 8]


# --- the journal ---


def in_the_file(tmp_path) -> int:
    """Versions that are in the store's file itself, without its journal."""
    shutil.copy(tmp_path / "state.db", tmp_path / "copy.db")
    with sqlite3.connect(tmp_path / "copy.db") as db:
        return db.execute("SELECT COUNT(*) FROM versions").fetchone()[0]


def test_the_journal_is_brought_into_the_file_once_enough_was_written(tmp_path, monkeypatch):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    monkeypatch.setattr(store_module, "TIDY_ROWS", 0)
    store.tidy()
    monkeypatch.setattr(store_module, "TIDY_ROWS", 3)
    store.versions.publish(1, 0)
    store.versions.publish(2, 0)
    store.tidy()
    assert in_the_file(tmp_path) == 0
    store.versions.publish(3, 0)
    store.tidy()
    assert in_the_file(tmp_path) == 3
    store.versions.publish(4, 0)
    for _ in range(store_module.TIDY_TURNS - 1):
        store.tidy()
    assert in_the_file(tmp_path) == 3
    store.tidy()
    assert in_the_file(tmp_path) == 4
    store.close()


def test_what_another_version_measured_is_measured_again(store: Store) -> None:
    prompts = tuple(PromptKey(1, prompt.index) for prompt in PROMPTS)
    plan = generate(store, plan_of(1, prompts=prompts))
    store.trajectories.assign(1, plan.trajectories())
    outcome = RoundOutcome(prompts, dict.fromkeys(prompts, PromptOutcome.TRAINED), {}, plan.trajectories())
    other = dict.fromkeys((SWITCH_COSTS, LOAN_RATES), '{"other": 1}')
    store.rounds.close(outcome, Boundary(1, Cursor(0, 2)), measured=other)
    assert store.rounds.switch_costs("").to_json() == SwitchCosts().to_json()
    assert store.rounds.loan_measurements(1.0, "").to_json() == LoanMeasurements().to_json()
