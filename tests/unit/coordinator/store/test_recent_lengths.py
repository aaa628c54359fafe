"""The lengths of recent rounds, from which tails are predicted: complete rounds, stopped responses included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundShape
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

LIMIT = 8
End = tuple[int, FinishReason | None]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    store.versions.publish(1, 0)
    yield store
    store.close()


def play(store: Store, step: int, *ends: End) -> None:
    """A round of one prompt whose responses end so; None: stopped. The first one is trained on."""
    prompt = PromptKey(0, step)
    plan = RoundPlan(step, 1, RoundShape(RoundKind.SHORT, 1, len(ends), 1, 1), (prompt,))
    keys: Sequence[TrajectoryKey] = plan.trajectories()
    store.rounds.open(plan, Cursor(0, step))
    store.trajectories.launched(step, 1, [(key, Lease("rollout-0", 1)) for key in keys])
    made = [Tokens(key, 0, [5] * tokens, [-1.0] * tokens) for key, (tokens, _) in zip(keys, ends, strict=True)]
    whole = [
        Response(key, 1, 1, (), (), finish, "rollout-0")
        for key, (_, finish) in zip(keys, ends, strict=True)
        if finish is not None
    ]
    store.trajectories.finish(step, made, whole)
    store.trajectories.score(step, keys[0], 1.0)
    store.trajectories.assign(step, keys[:1])
    outcome = RoundOutcome((prompt,), {prompt: PromptOutcome.TRAINED}, {}, tuple(keys[:1]))
    store.rounds.close(outcome, Boundary(step, Cursor(0, step)))


def test_all_responses_count_and_stopped_ones_as_such(store: Store) -> None:
    play(store, 1, (3, STOP), (4, None), (0, None), (LIMIT, LENGTH), (6, LENGTH))
    ends = [(3, True), (4, False), (0, False), (LIMIT, True), (6, False)]
    assert store.recent_lengths(1, LIMIT) == [LengthObservation(*one) for one in ends], "6 was an earlier limit"


@pytest.mark.parametrize(
    ("least", "steps"), [(1, (3,)), (2, (3,)), (3, (2, 3)), (4, (2, 3)), (5, (1, 2, 3)), (99, (1, 2, 3))]
)
def test_rounds_are_forgotten_whole(store: Store, least: int, steps: tuple[int, ...]) -> None:
    """One by one, those that ended would be forgotten first, and what is left would look long."""
    for step in (1, 2, 3):
        play(store, step, (step, STOP), (step, None))
    found = store.recent_lengths(least, LIMIT)
    assert found == [LengthObservation(step, ended) for step in steps for ended in (True, False)]


def test_neither_open_nor_undone_rounds_count(store: Store) -> None:
    assert store.recent_lengths(9, LIMIT) == []
    for step in (1, 2):
        play(store, step, (step, STOP))
    plan = RoundPlan(3, 1, RoundShape(RoundKind.LONG, 1, 1, 1, 1), (PromptKey(0, 9),))
    store.rounds.open(plan, Cursor(0, 3))
    assert [one.tokens for one in store.recent_lengths(9, LIMIT)] == [1, 2]
    store.rewind(1)
    assert [one.tokens for one in store.recent_lengths(9, LIMIT)] == [1]
