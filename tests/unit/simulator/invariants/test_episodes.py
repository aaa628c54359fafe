"""Episode invariants: the simulator's texts repeat, and an invariant must not take one turn for another."""

from __future__ import annotations

from itertools import count

import pytest

from rljob_runtime.coordinator.episodes.attempt import turn_key
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Response, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.simulator.core.events import Generated, Row
from rljob_runtime.simulator.core.tokens import phase, text
from rljob_runtime.simulator.invariants.episodes import EpisodeTexts

KEY = TrajectoryKey(PromptKey(0, 4), 1)
LENGTH = 8


def turn(attempt: int) -> TrajectoryKey:
    return turn_key(EpisodeAttempt(KEY, attempt), 2)


def with_text_of(first: TrajectoryKey, version: int, later: int) -> TrajectoryKey:
    """Another turn that version `later` gives the text that `version` gave the first one."""
    wanted = phase(first, version)
    return next(one for one in map(turn, count(100)) if phase(one, later) == wanted)


def response(key: TrajectoryKey, generated: int, version: int) -> Response:
    """A response that says that it is of `version`, with the text that `generated` gave this turn."""
    tokens, logprobs = text(phase(key, generated), 0, LENGTH)
    return Response(KEY, 1, version, tokens, logprobs, FinishReason.STOP, "rollout-0/replica-0")


def texts(*generated: tuple[TrajectoryKey, int]) -> EpisodeTexts:
    found = EpisodeTexts()
    for key, version in generated:
        found.generated(Generated("rollout-0/replica-0", key, 1, version, LENGTH, 0.0))
    return found


@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
def test_equal_texts_of_two_versions_are_those_of_the_response(order: int) -> None:
    old = turn(1)
    new = with_text_of(old, 1, 2)
    made = [(old, 1), (new, 2)][::order]
    assert texts(*made).problem(response(new, 2, 2)) is None
    assert texts(*made).problem(response(old, 1, 1)) is None


def test_a_turn_of_older_weights_is_told() -> None:
    old = turn(1)
    problem = texts((old, 1), (turn(2), 2)).problem(response(old, 1, 2))
    assert problem is not None
    assert "is of version 2, and its oldest turn of 1" in problem


def test_tokens_that_no_turn_emitted_are_told() -> None:
    problem = texts((turn(1), 1)).problem(response(turn(3), 1, 1))
    assert problem is not None
    assert "no turn of it emitted" in problem


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("seconds", 10.0, None, 40.0), True),
        (("turns", 10.0, None, 40.0), False),
        ((None, 10.0, None, None), False),
        (None, False),
        (("seconds", 10.0, None, 20.0), False),
        (("seconds", 30.0, None, 40.0), False),
        (("seconds", 10.0, "[[12.0, 24.0]]", 40.0), True),
        (("seconds", 10.0, "[[12.0, 31.0]]", 40.0), False),
    ],
    ids=["in its time", "turns", "open", "deleted", "before", "after", "after a pause", "before its last pause ended"],
)
def test_a_time_out_that_spans_two_coordinators_is_told(
    values: tuple[float | str | None, ...] | None, told: bool
) -> None:
    found = EpisodeTexts()
    for start in (1.0, 25.0):
        found.coordinator_started(start)
    problem = found.time_out_problem(Row("episodes", (7,), values))
    assert (problem == "attempt 7 is out of time, and a coordinator started at 25.000 s") == told
    assert told or problem is None
