"""Autoscaler: the number of rollout machines of a job, within its bounds.

Mode Asynchronous: more machines while the trainer waits for them, fewer while they wait for the trainer (the experience
buffer is full and generation is paused). Mode OnPolicy: as many as contribute their share to a round, by the
coordinator's predictions of rounds with one machine less and one more (`marginal_gain.py`).

A step is one machine. Between two thresholds nothing changes, and only updates that all present machines have served
completely count. Two rules prevent oscillation. A step down requires that the remaining machines can do nearly the same
work. After a step or a replacement, four complete updates and a minute must pass. All memory is in the status, so a
restarted operator decides the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.training import Mode
from rljob_api.status import ElasticityHistory, Replacements, RoundReport, RuntimeStatus, Target
from rljob_operator.policies.base.deadlines import deadline
from rljob_operator.policies.failure.losses import budget_exhausted
from rljob_operator.policies.scaling import marginal_gain
from rljob_operator.policies.scaling.machines import wanted_count

STARVING = 0.10
"""Share of its updates that the trainer waits, above which a machine is added."""
FLOODING = 0.20
"""Share for which replicas are paused, above which a machine is removed, if the others can do the work."""
SPARE = 1.05
"""Capacity that the remaining machines must have, relative to the work done."""
UPDATES = 4
"""Updates or rounds that a decision uses."""
TURN = 16
"""Rounds that a reversal of the last step uses: predictions are noisy, and four may mislead."""
REST_SECONDS = 60.0
"""Seconds without a step after another step or a replacement."""
FORGOTTEN: dict[str, tuple[float, ...]] = {"starving": (), "flooding": (), "brought": (), "would_bring": ()}
"""Measurements that do not apply to another number of machines."""


@dataclass(frozen=True)
class MachineCount:
    """A number of rollout machines, and its history."""

    count: int
    history: ElasticityHistory | None
    """Input of the next decision.

    It stays while only the user sets the number, for when the job is elastic again.
    """
    why: str = ""
    """Why the number has changed."""


def desired_machines_of_job(job: RLJob, working: Collection[str], now: datetime) -> MachineCount:
    """Return the number for a job whose machines `working` have a working pod.

    Machines with an exhausted budget are not waited for.
    """
    status = job.status
    report, target = status.runtime or RuntimeStatus(), status.target or Target()
    missing = set(target.machines) - set(working)
    # With fewer machines the measurements do not apply to the requested number: its quota may be in other use.
    fewer = status.elasticity is not None and len(target.machines) < status.elasticity.machines
    if status.replacements is not None:
        missing -= budget_exhausted(status.replacements, job.spec, target.machines)
    complete = not missing and not fewer and (report.applied or 0) >= target.revision > 0
    return desired_machines(job.spec, status.elasticity, report.last_round, complete, status.replacements, now)


def is_elastic(spec: RLJobSpec) -> bool:
    """Tell whether the operator may change the number of machines."""
    return spec.rollout.smallest < spec.rollout.largest


def desired_machines(
    spec: RLJobSpec,
    history: ElasticityHistory | None,
    last: RoundReport | None,
    complete: bool,
    replacements: Replacements | None,
    now: datetime,
) -> MachineCount:
    """Return the number after the `last` reported update.

    `complete`: every machine of the target, as the coordinator has applied it, is at work.
    """
    if not is_elastic(spec):
        return MachineCount(wanted_count(spec.rollout), history)
    memory = _valid_history(spec, history, last)
    if last is None or last.round == memory.round:
        return MachineCount(memory.machines, memory)
    memory = _learned(spec, memory, last, complete)
    rested = deadline(_disturbed(memory, replacements), REST_SECONDS)
    if max(len(memory.starving), len(memory.brought)) < UPDATES or (rested is not None and now < rested):
        return MachineCount(memory.machines, memory)
    step, why = _step(memory, last.round)
    count = memory.machines + step
    if step == 0 or not spec.rollout.smallest <= count <= spec.rollout.largest:
        return MachineCount(memory.machines, memory)
    changed = {"machines": count, "changed": now, "direction": step, **FORGOTTEN}
    return MachineCount(count, memory.model_copy(update=changed), why)


def _valid_history(spec: RLJobSpec, history: ElasticityHistory | None, last: RoundReport | None) -> ElasticityHistory:
    """Return the history as far as the spec still agrees with it.

    A new value of `machines` in the spec is followed.
    """
    asked = spec.rollout.machines
    if history is None or history.start != asked:
        observed = history.round if history is not None else last.round if last is not None else 0
        return ElasticityHistory(machines=wanted_count(spec.rollout), start=asked, round=observed)
    held = max(spec.rollout.smallest, min(history.machines, spec.rollout.largest))
    if held == history.machines:
        return history
    return history.model_copy(update={"machines": held, **FORGOTTEN})


def _learned(spec: RLJobSpec, memory: ElasticityHistory, last: RoundReport, complete: bool) -> ElasticityHistory:
    """Add an update to the history.

    The history is cleared where the update does not apply to the present machines.
    """
    again = last.round < memory.round  # back to a checkpoint
    figures = _waits(last) if spec.mode is Mode.ASYNCHRONOUS else _shares(spec, memory, last)
    if figures is None or again or not complete:
        return memory.model_copy(update={"round": last.round, **FORGOTTEN})
    kept = {name: (*getattr(memory, name), figure)[-TURN:] for name, figure in figures.items()}
    return memory.model_copy(update={"round": last.round, **kept})


def _waits(last: RoundReport) -> dict[str, float] | None:
    """Return the shares of an update that trainer and replicas waited for each other; None where unknown."""
    waited, stood = last.trainer_wait_seconds, last.buffer_full_seconds
    if not last.seconds or waited is None or stood is None:
        return None
    return {"starving": min(1.0, waited / last.seconds), "flooding": min(1.0, stood / last.seconds)}


def _shares(spec: RLJobSpec, memory: ElasticityHistory, last: RoundReport) -> dict[str, float] | None:
    """Return the contributions of machines to a round; None without a prediction for the present number."""
    shares = marginal_gain.measure(memory.machines, marginal_gain.trainer_size(spec), last)
    return None if shares is None else {"brought": shares.brought, "would_bring": shares.would_bring}


def _disturbed(memory: ElasticityHistory, replacements: Replacements | None) -> datetime | None:
    """Return when the machines last changed."""
    entries = replacements.backoff.values() if replacements is not None else ()
    moments = [memory.changed, *(entry.last_failure_time for entry in entries)]
    return max((moment for moment in moments if moment is not None), default=None)


def _step(memory: ElasticityHistory, round_: int) -> tuple[int, str]:
    """Choose one machine more, one less, or none, and explain it."""
    return _by_shares(memory, round_) if memory.brought else _by_waits(memory, round_)


def _by_shares(memory: ElasticityHistory, round_: int) -> tuple[int, str]:
    step, why = marginal_gain.choose_step(memory.brought[-UPDATES:], memory.would_bring[-UPDATES:], round_)
    if step == 0 or step != -memory.direction:
        return step, why
    if len(memory.brought) < TURN:
        return 0, ""
    turn, why = marginal_gain.choose_step(memory.brought, memory.would_bring, round_)
    return (turn, why) if turn == step else (0, "")


def _by_waits(memory: ElasticityHistory, round_: int) -> tuple[int, str]:
    starving = sum(memory.starving[-UPDATES:]) / UPDATES
    flooding = sum(memory.flooding[-UPDATES:]) / UPDATES
    when = f"updates {round_ - UPDATES + 1} to {round_}"
    if starving > STARVING and flooding > FLOODING:
        return 0, ""  # they wait for each other by turns: the number of machines is not what is wrong
    if starving > STARVING:
        return 1, f"the trainer waited for {starving:.0%} of {when}"
    busy = (1.0 - flooding) * memory.machines
    if flooding > FLOODING and busy * SPARE <= memory.machines - 1:
        return -1, f"the buffer was full for {flooding:.0%} of {when}"
    return 0, ""
