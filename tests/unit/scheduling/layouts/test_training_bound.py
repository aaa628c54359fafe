"""What a streaming trainer gains by a shorter generation: a table whose arithmetic can be followed, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.layouts.training_bound import trained_gain
from rljob_runtime.scheduling.lending.gain import EngineSpeed, OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.round_planner.survival import Survival

SPEED = EngineSpeed(LatencyModel(((1.0, 0.1), (1024.0, 0.1)), 0.0, 0.0, 0.0, 0.0), 1, 64)
"""0.1 s for each step."""


def round_of(*generated: int, backlog: int = 0, speed: EngineSpeed | None = SPEED) -> RoundSnapshot:
    """Groups of one response of 100 tokens each, on one machine, with so many tokens so far."""
    unfinished = tuple(Unfinished(5, tokens, group) for group, tokens in enumerate(generated))
    return RoundSnapshot(
        machines=[LoanableMachine("m", 10_000, unfinished)],
        waiting=(),
        lengths=ExpectedLengths(Survival([100]), 100),
        groups=[OpenGroup(1)] * len(generated),
        wanted=len(generated),
        backlog=backlog,
        speed=speed,
    )


@pytest.mark.parametrize(
    ("round_", "token", "gain"),
    [
        pytest.param(round_of(0), 0.0, 5.0, id="training takes no time: all of it"),
        pytest.param(round_of(0), 0.01, 5.0, id="one group, whose training begins earlier"),
        pytest.param(round_of(0, backlog=700), 0.01, 3.0, id="the trainer is busy for 7 of the first 10 s"),
        pytest.param(round_of(0, backlog=2000), 0.01, 0.0, id="it is busy for longer than generation"),
        pytest.param(round_of(90, 0), 0.2, 0.5, id="the second group waits for the first one's training"),
        pytest.param(round_of(90, 0), 0.0, 5.0, id="and does not where training takes no time"),
        pytest.param(round_of(0), None, None, id="a trainer whose speed is unknown"),
        pytest.param(round_of(0, speed=None), 0.01, None, id="engines whose speed is unknown"),
    ],
)
def test_what_half_of_the_generation_saves(round_: RoundSnapshot, token: float | None, gain: float | None) -> None:
    found = trained_gain(0.5, round_, token)
    assert found is None if gain is None else found == pytest.approx(gain)


GENERATED = st.lists(st.integers(0, 99), min_size=1, max_size=12)


@given(GENERATED, st.integers(0, 5000), st.floats(0, 0.1), st.floats(0, 1))
def test_training_gains_no_more_than_generation_and_never_loses(
    generated: list[int], backlog: int, token: float, saved: float
) -> None:
    gain = trained_gain(saved, round_of(*generated, backlog=backlog), token)
    assert gain is not None
    assert -1e-9 <= gain <= saved * 0.1 * (100 - min(generated)) + 1e-6


@given(GENERATED, st.integers(0, 5000), st.floats(0, 0.1), st.floats(0, 0.5))
def test_more_to_catch_up_with_gains_less(generated: list[int], backlog: int, token: float, saved: float) -> None:
    gains = [trained_gain(saved, round_of(*generated, backlog=done), token) for done in (backlog, backlog + 500)]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[1] <= gains[0] + 1e-9
