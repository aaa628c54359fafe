"""What a round gains by switches if its trainer streams: tables whose arithmetic can be followed, and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.layouts.layout_switch import SwitchableMachine, SwitchLook
from rljob_runtime.scheduling.layouts.training_bound import RoundGain, round_gain
from rljob_runtime.scheduling.lending.gain import OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished
from rljob_runtime.scheduling.round_planner.survival import Survival

STEP = {1: 0.1, 4: 0.025}
"""Seconds of each step, by tensor parallel size."""
ENGINES = {
    size: SizedEngine(LatencyModel(((1.0, seconds), (1024.0, seconds)), 0.0, 0.0, 0.0, 0.0), 1 << 20)
    for size, seconds in STEP.items()
}
NOTHING: Mapping[TrajectoryKey, int] = {}


def look_of(*machines: Sequence[int], sizes: Sequence[int] = (), **round_: Any) -> SwitchLook:
    """A look at machines of one engine each, with groups of one response of 100 tokens.

    `machines`: tokens so far of the responses of each. `sizes`: of the machines, by default 1."""
    group, by_replica = 0, {}
    for number, generated in enumerate(machines):
        by_replica[f"m{number}/e"] = tuple(
            Unfinished(5, tokens, group + place) for place, tokens in enumerate(generated)
        )
        group += len(generated)
    snapshot = RoundSnapshot(
        machines=[],
        waiting=(),
        lengths=ExpectedLengths(Survival([100]), 100),
        groups=[OpenGroup(1)] * group,
        wanted=group,
        backlog=round_.get("backlog", 0),
        speed=None,
        by_replica=by_replica,
    )
    known = dict(zip(by_replica, sizes or [1] * len(machines), strict=True))
    able = [
        SwitchableMachine(f"m{number}", known[f"m{number}/e"], (1, 4), {f"m{number}/e": NOTHING})
        for number in range(len(machines))
    ]
    return SwitchLook(able, snapshot, known, ENGINES)


def switch(gain: float = 5.0, without: float = 10.0, seconds: float = 0.0) -> SwitchDecision:
    return SwitchDecision(SwitchOutcome.SWITCHED, 4, seconds=seconds, gain=gain, without=without)


STAYS = SwitchDecision(SwitchOutcome.NO_GAIN, gain=0.0, without=10.0)


@pytest.mark.parametrize(
    ("look", "token", "generation", "training"),
    [
        pytest.param(look_of([0]), 0.0, 5.0, 5.0, id="training takes no time: all of it"),
        pytest.param(look_of([0]), 0.01, 5.0, 5.0, id="one group, whose training begins earlier"),
        pytest.param(look_of([0], backlog=700), 0.01, 5.0, 3.0, id="the trainer is busy for 7 of the first 10 s"),
        pytest.param(look_of([0], backlog=2000), 0.01, 5.0, 0.0, id="it is busy for longer than generation"),
        pytest.param(look_of([90, 0]), 0.2, 5.0, 0.5, id="the second group waits for the first one's training"),
        pytest.param(look_of([90, 0]), 0.0, 5.0, 5.0, id="and does not where training takes no time"),
    ],
)
def test_what_half_of_the_generation_saves(look: SwitchLook, token: float, generation: float, training: float) -> None:
    found = round_gain(look, {"m0": switch()}, token)
    assert found is not None
    assert (found.generation, found.training) == pytest.approx((generation, training))


def test_a_machine_that_switches_pauses_before_its_groups_come_earlier() -> None:
    """The first group ends after 1 s without the switch, and after 4 + 0.1 s with it; the trainer is busy from then."""
    found = round_gain(look_of([90, 0]), {"m0": switch(gain=5.0, seconds=4.0)}, 0.2)
    assert found is not None
    assert (found.generation, found.training) == pytest.approx((5.0, -3.1))


def test_each_engine_has_the_speed_of_its_own_machine() -> None:
    """The last machine still has size 1: it ends the round, whatever size most machines have."""
    look = look_of([0], [0], [0], sizes=(4, 4, 1))
    found = round_gain(look, {"m0": STAYS, "m1": STAYS, "m2": switch()}, 0.001)
    assert found == RoundGain(pytest.approx(5.0), pytest.approx(5.0))
    others = round_gain(look, {"m0": switch(1.0, 2.5), "m2": STAYS}, 0.001)
    assert others == RoundGain(0.0, 0.0), "another machine ends last"
    waits = SwitchDecision(SwitchOutcome.WAITING)
    assert round_gain(look, {"m0": switch(1.0, 2.5), "m2": waits}, 0.001) == RoundGain(0.0, 0.0), "nor predicted"


@pytest.mark.parametrize(
    ("look", "switches", "token"),
    [
        pytest.param(look_of([0]), {"m0": switch()}, None, id="a trainer whose speed is unknown"),
        pytest.param(look_of([0], sizes=(2,)), {"m0": switch()}, 0.01, id="a size whose speed is unknown"),
        pytest.param(look_of([0]), {"m0": STAYS}, 0.01, id="nothing switches"),
        pytest.param(
            look_of([0]), {"m0": SwitchDecision(SwitchOutcome.SWITCHED, 4)}, 0.01, id="a switch without a prediction"
        ),
    ],
)
def test_what_is_not_known_is_not_judged(
    look: SwitchLook, switches: Mapping[str, SwitchDecision], token: float | None
) -> None:
    assert round_gain(look, switches, token) is None


GENERATED = st.lists(st.integers(0, 99), min_size=1, max_size=8)


@given(GENERATED, GENERATED, st.integers(0, 5000), st.floats(0, 0.1), st.floats(0.01, 1), st.floats(0, 3))
def test_training_gains_no_more_than_generation_can(
    first: list[int], second: list[int], backlog: int, token: float, share: float, pause: float
) -> None:
    """And loses no more than the pause: it delays each group by that at most."""
    without = 0.1 * (100 - min(first))
    decision = switch(gain=share * without - pause, without=without, seconds=pause)
    found = round_gain(look_of(first, second, backlog=backlog), {"m0": decision, "m1": STAYS}, token)
    assert found is not None
    for gain in (found.generation, found.training):
        assert -pause - 1e-6 <= gain <= share * without + 1e-6


@given(GENERATED, st.integers(0, 5000), st.floats(0, 0.1), st.floats(0, 0.5))
def test_more_to_catch_up_with_gains_less(generated: list[int], backlog: int, token: float, share: float) -> None:
    without = 0.1 * (100 - min(generated))
    decisions = {"m0": switch(gain=share * without, without=without)}
    found = [round_gain(look_of(generated, backlog=done), decisions, token) for done in (backlog, backlog + 500)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].training <= found[0].training + 1e-9
