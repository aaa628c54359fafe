"""Starts: the size in which the stages of a job begin, once its operator has followed the predictions of its rounds.

The coordinator predicts a round for each size, with the switches that follow, and the operator's parallelism planner
changes the size by that. So the start is not the best one that can be predicted: a slight gain has to repay a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rljob_api.spec import Rollout
from rljob_api.status import LayoutForecast, RoundKind, RoundReport, Target, TargetPhase
from rljob_operator.policies.scaling.parallelism_planner import choose_tp
from rljob_operator.policies.scaling.target import next_target
from rljob_runtime.scheduling.adaptive_tp.forecast import Machine, switch_gains
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, generate
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

START_ROUNDS = 4
"""Earlier rounds by whose lengths starts are predicted."""
ROUNDS, PLAYED = 500, 60
"""Rounds of the job, and those after which its size is taken."""


@dataclass(frozen=True)
class Forecasts:
    """Predicted seconds of a stage, by the size in which it begins: without switches, and with those that follow."""

    without: Mapping[int, float]
    switched: Mapping[int, float]


def predicted_starts(machine: Machine, rounds: Sequence[Sequence[Asked]], machines: int, cap: int) -> Forecasts:
    """Return the seconds of a stage on so many machines, from these earlier rounds.

    A stage lasts until its last machine is done, and what switches save there is what they save on the first one."""
    parts = [[one[number::machines] for number in range(machines)] for one in rounds]

    def seconds(size: int, part: Sequence[Asked]) -> float:
        return generate(part, size, machine.engines, machine.accelerators, {}).seconds

    static = {size: fmean(max(seconds(size, part) for part in one) for one in parts) for size in machine.engines}
    known = [LengthObservation(one.tokens) for earlier in rounds for one in earlier]
    saved = switch_gains(machine, [one[0] for one in parts], known, cap)
    return Forecasts(static, {size: static[size] - saved.get(size, 0.0) for size in static})


def arrived(begin: int, seconds: Mapping[int, float], accelerators: int) -> int:
    """Return the size that a job arrives at which begins in one size, and whose rounds have these predicted seconds.

    No round has a preemption.

    >>> arrived(8, {2: 98.0, 4: 101.0, 8: 100.0}, 8), arrived(8, {2: 99.9, 4: 101.0, 8: 100.0}, 8)
    (2, 8)
    """
    sizes = tuple(sorted(seconds))
    rollout = Rollout(
        machines=1,
        accelerators_per_machine=accelerators,
        tensor_parallel_size=begin,
        allowed_tensor_parallel_sizes=sizes,
    )
    forecasts = tuple(LayoutForecast(tensor_parallel_size=size, seconds=seconds[size]) for size in sizes)
    target: Target | None = None
    choice = choose_tp(rollout, None, None, None, 1, ROUNDS)
    for number in range(1, PLAYED + 1):
        size = choice.sizes.long
        target = next_target(target, ("rollout-0",), choice.sizes, TargetPhase.RUN, "")
        last = RoundReport(
            round=number, kind=RoundKind.PLAIN, preemptions=0, tensor_parallel_size=size, layout_forecasts=forecasts
        )
        choice = choose_tp(rollout, target, choice.history, last, 1, ROUNDS, target.revision)
    return choice.sizes.long
