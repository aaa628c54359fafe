"""Target: what the coordinator runs on: machines, tensor parallel sizes, and whether to run or to suspend."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.spec import RLJob
from rljob_api.status import ParallelismHistory, RuntimeStatus, Target, TargetPhase, TargetTensorParallel
from rljob_operator.policies.scaling import parallelism_planner


def choose_target(
    job: RLJob, machines: Sequence[str], phase: TargetPhase, why: str = ""
) -> tuple[Target, ParallelismHistory | None]:
    """Choose the next target, and return the parallelism planner's history.

    The planner learns from rounds only while the job runs. `why`: the reason of a change of the number of machines that
    is not the user's.
    """
    before = job.status
    report = before.runtime if phase is TargetPhase.RUN and before.runtime is not None else RuntimeStatus()
    spec, last = job.spec, report.last_round
    choice = parallelism_planner.choose_tp(
        spec.rollout, before.target, before.parallelism, last, len(machines), spec.rounds, report.applied
    )
    reason = _reason(before.target, machines, choice, why) if phase is TargetPhase.RUN else "Suspended"
    return next_target(before.target, machines, choice.sizes, phase, reason), choice.history


def next_target(
    before: Target | None, machines: Sequence[str], sizes: TargetTensorParallel, phase: TargetPhase, reason: str
) -> Target:
    """Return the target with this content. Its revision rises when, and only when, it changes."""
    old = before or Target()
    if (old.machines, old.tensor_parallel, old.phase) == (tuple(machines), sizes, phase):
        return old
    return Target(
        revision=old.revision + 1, machines=tuple(machines), tensor_parallel=sizes, phase=phase, reason=reason
    )


def _reason(before: Target | None, new: Sequence[str], choice: parallelism_planner.Choice, why: str) -> str:
    old = before.machines if before is not None else ()
    if not old:
        return "Started"
    scaled = ("ScaledUp",) if len(new) > len(old) else ("ScaledDown",) if len(new) < len(old) else ()
    scalings = tuple(f"{one}: {why}" if why else one for one in scaled)
    return "; ".join((*scalings, *choice.reasons)) or "Resumed"
