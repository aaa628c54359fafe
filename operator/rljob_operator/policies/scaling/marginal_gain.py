"""What rollout machines bring to the rounds of mode OnPolicy.

A job is as large as its rollout machines and its trainer, which stands still while they generate. One machine more
brings its whole share if a round becomes shorter by as much as the job becomes larger: then the round costs what it did
and ends sooner. It brings less where a round waits for its longest response, for rewards, or for the update.

Half of its share is what a machine must bring: with rounds of T(n) seconds on n rollout machines and a trainer as large
as w of them, T(n) * (n + w) T(n), seconds times machine-seconds, becomes less by a machine that brings more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.spec import RLJobSpec
from rljob_api.status import RoundReport

WORTH = 0.5
"""One machine more, if it brings at least so much of its share."""
IDLE = 0.25
"""One machine less, if the last one brings less than so much of its share."""


@dataclass(frozen=True)
class TimeShares:
    """Of a round, between 0 and 1: what the last machine brought of its share, and what one more would have brought.
    Where one less, or one more, was not foretold, it must not be: then the last one counts as needed, one more as
    useless."""

    brought: float
    would_bring: float


def trainer_size(spec: RLJobSpec) -> float:
    """The trainer, in rollout machines: by accelerators; where machines have none, each pod is one."""
    trainer, machine = spec.trainer, spec.rollout.accelerators_per_machine
    return trainer.replicas * trainer.accelerators_per_replica / machine if machine else float(trainer.replicas)


def measure(machines: int, trainer: float, last: RoundReport) -> TimeShares | None:
    """By what was foretold of this round; None where that says nothing of the present number of machines. `trainer`:
    its size, in machines."""
    seconds = {one.machines: one.seconds for one in last.machine_forecasts or ()}
    now, fewer, more = (seconds.get(number) for number in (machines, machines - 1, machines + 1))
    if not now:
        return None
    brought = 1.0 if fewer is None else (fewer / now - 1) * (machines - 1 + trainer)
    would_bring = 0.0 if not more else (now / more - 1) * (machines + trainer)
    return TimeShares(*(min(1.0, max(0.0, share)) for share in (brought, would_bring)))


def choose_step(brought: Sequence[float], would_bring: Sequence[float], round_: int) -> tuple[int, str]:
    """One machine more, one less, or none, after rounds up to `round_` with such shares; and why."""
    rounds = f"rounds {round_ - len(brought) + 1} to {round_}"
    last, another = (sum(shares) / len(shares) for shares in (brought, would_bring))
    if another >= WORTH:
        return 1, f"one machine more was foretold to bring {another:.0%} of its share to {rounds}"
    if last < IDLE:
        return -1, f"the last machine was foretold to bring {last:.0%} of its share to {rounds}"
    return 0, ""
