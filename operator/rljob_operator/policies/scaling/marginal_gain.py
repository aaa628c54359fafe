"""Marginal gain: what one rollout machine contributes to rounds of mode OnPolicy.

The size of a job is its rollout machines plus its trainer, which is idle while they generate. One machine more
contributes its full share if a round becomes shorter by as much as the job becomes larger: the round costs the same and
ends sooner. It contributes less where a round waits for its longest response, for rewards, or for the update.

A machine must contribute half of its share. With rounds of T(n) seconds on n rollout machines and a trainer of the size
of w machines, T(n) * (n + w) T(n) (seconds times machine-seconds) decreases with a machine that contributes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.spec import RLJobSpec
from rljob_api.status import RoundReport

WORTH = 0.5
"""Least share that one more machine must contribute to be added."""
IDLE = 0.25
"""Share of the last machine below which it is removed."""


@dataclass(frozen=True)
class TimeShares:
    """Shares of a round, from 0 to 1: what the last machine contributed, and what one more would have contributed.

    Where a prediction is missing, that number is not allowed. Then the last machine counts as needed, and one more as
    useless.
    """

    brought: float
    would_bring: float


def trainer_size(spec: RLJobSpec) -> float:
    """Return the trainer's size in rollout machines: by accelerators, or by pods where machines have none."""
    trainer, machine = spec.trainer, spec.rollout.accelerators_per_machine
    return trainer.replicas * trainer.accelerators_per_replica / machine if machine else float(trainer.replicas)


def measure(machines: int, trainer: float, last: RoundReport) -> TimeShares | None:
    """Measure the shares by the predictions of this round.

    None where they do not cover the present number of machines. `trainer`: its size in machines.
    """
    seconds = {one.machines: one.seconds for one in last.machine_forecasts or ()}
    now, fewer, more = (seconds.get(number) for number in (machines, machines - 1, machines + 1))
    if not now:
        return None
    brought = 1.0 if fewer is None else (fewer / now - 1) * (machines - 1 + trainer)
    would_bring = 0.0 if not more else (now / more - 1) * (machines + trainer)
    return TimeShares(*(min(1.0, max(0.0, share)) for share in (brought, would_bring)))


def choose_step(brought: Sequence[float], would_bring: Sequence[float], round_: int) -> tuple[int, str]:
    """Choose one machine more, one less, or none, after rounds up to `round_` with these shares, and explain it."""
    rounds = f"rounds {round_ - len(brought) + 1} to {round_}"
    last, another = (sum(shares) / len(shares) for shares in (brought, would_bring))
    if another >= WORTH:
        return 1, f"one machine more was predicted to contribute {another:.0%} of its share to {rounds}"
    if last < IDLE:
        return -1, f"the last machine was predicted to contribute {last:.0%} of its share to {rounds}"
    return 0, ""
