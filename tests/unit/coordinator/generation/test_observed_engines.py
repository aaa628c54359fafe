"""Observed engines: the speed of each machine's engines, also of those that have another size than most."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines, engine_speed
from rljob_runtime.coordinator.stream_training.round_snapshot import snapshot_round
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.lending.policy import ExpectedLengths
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import RoundPlan, RoundShape
from rljob_runtime.scheduling.round_planner.survival import Survival


def seen(step_seconds: float) -> Speed:
    """What polls show of engines whose steps take so long."""
    return Speed(1, 1000, 64, tuple(SpeedSample(100, batch, 0.0, 100 * step_seconds) for batch in (1, 8)))


SPEEDS = {1: (seen(0.1),), 4: (seen(0.03),)}
SIZES = {"a/replica-0": 1, "a/replica-1": 1, "b/replica-0": 1, "c/replica-0": 4, "d/replica-0": 2}
ENGINES = ObservedEngines(dict.fromkeys(SIZES, 1000), {}, SIZES, SPEEDS, size=1)


def test_machines_of_another_size_have_their_own_speed() -> None:
    assert ENGINES.speed == engine_speed(SPEEDS[1])
    assert ENGINES.other_speeds == {"c": engine_speed(SPEEDS[4]), "d": None}, "size 2 was not observed"
    assert replace(ENGINES, size=4).other_speeds.keys() == {"a", "b", "d"}


def test_a_loan_is_predicted_from_the_speed_of_each_machine() -> None:
    prompt = PromptKey(0, 0)
    round_ = Round(RoundPlan(1, 1, RoundShape(RoundKind.PLAIN, 1, 2, 1, 2), (prompt,)))
    prompts = cast(Any, SimpleNamespace(prompt=lambda key: SimpleNamespace(token_ids=(7,))))
    lengths = ExpectedLengths(Survival([50]), 100)
    found = snapshot_round(round_, {}, [], Partials(), prompts, ENGINES, lengths, 0)
    speeds = [found.speed_of(machine.name) for machine in found.machines]
    assert speeds == [engine_speed(SPEEDS[1])] * 2 + [engine_speed(SPEEDS[4]), None]
