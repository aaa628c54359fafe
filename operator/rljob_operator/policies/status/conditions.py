"""Conditions after the kstatus contract: Ready always, Reconciling and Stalled only while true and never both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from rljob_api.constants import HALTING
from rljob_api.status import Condition, ConditionStatus, EnvironmentStatus, Phase, RLJobStatus
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import JobOutcome
from rljob_operator.policies.base.kueue_objects import ADMITTED, Hold

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
RELAY_READY, DEGRADED, CHECKPOINT_DURABLE = "RelayReady", "Degraded", "CheckpointDurable"

DURABLE = ConditionReason("VolumeClaim", "")
NOT_DURABLE = ConditionReason(
    "EmptyDir",
    "spec.checkpoint names no volumeClaimName: state dies with the coordinator's and the trainer's pods, so their "
    "replacement, and suspension, start the run over",
)

PAUSED = (
    "More than half of the rollout machines, on several nodes, count as dead. The network is the likely cause, so "
    "replacement is delayed. Then machines are replaced one by one"
)


@dataclass(frozen=True)
class Facts:
    """Input of the conditions. Counts are of machines; `wanted` is the spec's number, `ready` counts ready pods."""

    generation: int
    coordinator_ready: bool = False
    trainers_wanted: int = 0
    trainers_ready: int = 0
    rollouts_wanted: int = 0
    rollouts_ready: int = 0
    rollouts_smallest: int = 0
    chain_length: int = 0
    leaving: int = 0
    departing: tuple[str, ...] = ()
    """Machines whose pods another client has deleted, and that hand over their state."""
    replacing: tuple[str, ...] = ()
    """Machines whose pod was lost and whose new one is not ready yet."""
    pods: int = 0
    suspending: bool = False
    started: bool = False
    """All pods of this run have been ready once."""
    durable: bool = True
    stall: ConditionReason | None = None
    refused: ConditionReason | None = None
    """Why the newest spec is refused; all other facts are about the accepted one."""
    problems: tuple[ConditionReason, ...] = ()
    """Warnings of the coordinator."""
    paused: ConditionReason | None = None
    """Why the replacement of doubted machines is held."""
    outcome: JobOutcome | None = None
    held: Hold | None = None
    """Why a job with a queue is suspended."""
    admission: ConditionReason | None = None
    """Kueue's assignment of a job that runs on quota."""
    environments: tuple[EnvironmentStatus, ...] = ()
    """Runners of each environment, wanted and ready."""

    @property
    def halted(self) -> ConditionReason | None:
        """Return the warning that prevents the next round."""
        return next((problem for problem in self.problems if problem.reason in HALTING), None)

    @property
    def obstacle(self) -> ConditionReason | None:
        """Return what a person must remove before a job can run."""
        if self.outcome is not None:
            return None
        if self.suspending:
            return self.held.stall if self.held is not None and self.held.stalled else None
        return self.stall or self.halted

    @property
    def ready(self) -> ConditionReason:
        """Return what Ready waits for.

        An obstacle comes before the machines that it prevents. The reason is RoundsProgressing when Ready waits for
        nothing.
        """
        if self.outcome is not None:
            return ConditionReason("Failed" if self.outcome.failed else "Completed", self.outcome.message)
        if self.held is not None:
            return self.held.stall
        if self.suspending:
            return ConditionReason("Suspended", "The job is suspended, or suspends")
        missing = self._missing
        if missing is not None:
            return self.obstacle or missing
        return self.halted or ConditionReason("RoundsProgressing", self._rollouts)

    @property
    def _missing(self) -> ConditionReason | None:
        """Return the first required machines that are not ready."""
        if not self.coordinator_ready:
            return ConditionReason("CoordinatorNotReady", "the coordinator's pod is not ready")
        if self.trainers_ready < self.trainers_wanted:
            return ConditionReason(
                "TrainerNotReady", f"{self.trainers_ready} of {self.trainers_wanted} trainer pods are ready"
            )
        if self.rollouts_ready < self.rollouts_smallest:
            return ConditionReason(
                "BelowMinMachines", f"{self._rollouts}, at least {self.rollouts_smallest} are needed"
            )
        idle = next((one for one in self.environments if one.runners and not one.ready), None)
        if idle is not None:
            return ConditionReason("EnvironmentNotReady", _counted(idle))
        return None

    @property
    def short_of_runners(self) -> str:
        """Name the first environment that lacks ready runners, with its numbers. Empty if none does."""
        lacking = next((one for one in self.environments if one.ready < one.runners), None)
        return _counted(lacking) if lacking is not None else ""

    @property
    def _rollouts(self) -> str:
        return f"{self.rollouts_ready} of {self.rollouts_wanted} rollout machines are ready"

    @property
    def is_ready(self) -> bool:
        return self.ready.reason in ("RoundsProgressing", "Completed")


def _counted(one: EnvironmentStatus) -> str:
    return f"{one.ready} of {one.runners} runners of environment {one.name} are ready"


def derive(facts: Facts, before: RLJobStatus, now: datetime) -> tuple[Condition, ...]:
    """Derive all conditions. A transition time changes only with its status."""
    # Ready at this generation would mean that the newest spec is in force.
    found = [_condition(READY, facts.is_ready and facts.refused is None, facts.refused or facts.ready)]
    stalled = _stalled(facts)
    if stalled is not None:
        found.append(_condition(STALLED, True, stalled))
    else:
        reconciling = _reconciling(facts)
        if reconciling is not None:
            found.append(_condition(RECONCILING, True, reconciling))
    found += [
        _condition(RELAY_READY, *_relay(facts)),
        _condition(DEGRADED, *_degraded(facts)),
        _condition(CHECKPOINT_DURABLE, facts.durable, DURABLE if facts.durable else NOT_DURABLE),
        _condition(SUSPENDED, *_suspended(facts)),
        *_admitted(facts),
        *_terminal(facts),
    ]
    return stamp(found, before.conditions, facts.generation, now)


def stamp(
    found: Iterable[Condition], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Set generation and transition times by the conditions that were written before."""
    known = {condition.type: condition for condition in before}

    def stamped(condition: Condition) -> Condition:
        old = known.get(condition.type)
        same = old is not None and old.status is condition.status and old.last_transition_time is not None
        moment = old.last_transition_time if same and old is not None else now
        return condition.model_copy(update={"observed_generation": generation, "last_transition_time": moment})

    return tuple(stamped(condition) for condition in found)


def phase(facts: Facts) -> Phase:
    """Return the state in one word."""
    if facts.outcome is not None:
        return Phase.FAILED if facts.outcome.failed else Phase.SUCCEEDED
    if facts.suspending:
        waiting = Phase.PENDING if facts.held is not None else Phase.SUSPENDED
        return Phase.SUSPENDING if facts.pods else Phase.STALLED if facts.obstacle is not None else waiting
    if facts.is_ready:
        return Phase.RUNNING
    if facts.obstacle is not None:
        return Phase.STALLED
    return Phase.STARTING if facts.pods else Phase.PENDING


def stalled_now(
    status: RLJobStatus, before: RLJobStatus, stall: ConditionReason, generation: int, now: datetime
) -> RLJobStatus:
    """Set Stalled for a reason that was found during execution.

    A job that is not Ready waits for that reason. `before` is the written status: the same refusal at the next try is
    no transition.
    """
    waits = status.phase is not Phase.RUNNING
    text = [_condition(STALLED, True, stall), *([_condition(READY, False, stall)] if waits else [])]
    found = {c.type: c for c in status.conditions if c.type != RECONCILING}
    found |= {c.type: c for c in stamp(text, before.conditions, generation, now)}
    phase = Phase.STALLED if waits else status.phase
    return status.model_copy(update={"conditions": tuple(found.values()), "phase": phase})


def _condition(type_: str, holds: bool, why: ConditionReason) -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(type=type_, status=status, reason=why.reason[:128], message=why.message[:2048])


def _stalled(facts: Facts) -> ConditionReason | None:
    if facts.outcome is not None:
        return ConditionReason(facts.outcome.reason, facts.outcome.message) if facts.outcome.failed else None
    return facts.refused or facts.obstacle


def _reconciling(facts: Facts) -> ConditionReason | None:
    if facts.outcome is not None:
        return None
    if facts.suspending:
        if facts.pods:
            return ConditionReason("Suspending", f"{facts.pods} pods still exist")
        return facts.held.stall if facts.held is not None else None
    if not facts.started:
        return ConditionReason("Creating", facts.ready.message)
    if facts.departing:
        return ConditionReason(
            "MachineLeaving", f"being deleted, and saving their state first: {', '.join(facts.departing)}"
        )
    if facts.leaving:
        return ConditionReason("ScalingDown", f"{facts.leaving} rollout machines hand over their responses and leave")
    if facts.replacing:
        return ConditionReason("ReplacingMachine", f"waiting for the new pods of {', '.join(facts.replacing)}")
    missing = facts.rollouts_wanted - facts.rollouts_ready
    if missing > 0:
        return ConditionReason("ScalingUp", f"{missing} rollout machines are not ready yet")
    if facts.short_of_runners:
        return ConditionReason("EnvironmentNotReady", facts.short_of_runners)
    return None if facts.is_ready else ConditionReason(facts.ready.reason, facts.ready.message)


def _relay(facts: Facts) -> tuple[bool, ConditionReason]:
    if facts.outcome is not None:
        return False, ConditionReason("Ended", "")
    if facts.suspending:
        return False, ConditionReason("Suspended", "")
    text = f"{facts.chain_length} of {facts.rollouts_wanted} rollout machines are in the chain"
    if facts.chain_length == 0:
        return False, ConditionReason("WaitingForMachines", text)
    complete = facts.chain_length >= facts.rollouts_wanted
    return complete, ConditionReason("ChainFormed" if complete else "MemberMissing", text)


def _degraded(facts: Facts) -> tuple[bool, ConditionReason]:
    if facts.outcome is None and not facts.suspending:
        if facts.paused is not None:
            return True, facts.paused
        lasting = [problem for problem in facts.problems if problem.reason not in HALTING]
        if lasting:
            return True, lasting[0]
        if facts.started and facts.rollouts_ready < facts.rollouts_wanted:
            return True, ConditionReason(
                "MachinesMissing", f"{facts.rollouts_ready} of {facts.rollouts_wanted} rollout machines are ready"
            )
        if facts.started and facts.short_of_runners:
            return True, ConditionReason("RunnersMissing", facts.short_of_runners)
    return False, ConditionReason("AsDesired", "")


def _suspended(facts: Facts) -> tuple[bool, ConditionReason]:
    if facts.suspending and facts.outcome is None:
        if facts.pods == 0 and facts.held is not None:
            return True, facts.held.stall
        if facts.pods == 0:
            return True, ConditionReason(
                "SuspendedByUser", "Suspended. All pods are deleted. Set spec.suspend=false to resume."
            )
        return False, ConditionReason("Suspending", "")
    return False, ConditionReason("NotSuspended", "")


def _admitted(facts: Facts) -> list[Condition]:
    """Derive Admitted, for jobs with a queue that the user has not suspended."""
    if facts.held is not None:
        return [_condition(ADMITTED, False, facts.held.stall)]
    return [_condition(ADMITTED, True, facts.admission)] if facts.admission is not None else []


def _terminal(facts: Facts) -> list[Condition]:
    outcome = facts.outcome
    if outcome is None:
        going = ConditionReason("InProgress", "")
        return [_condition(COMPLETE, False, going), _condition(FAILED, False, going)]
    end = ConditionReason(outcome.reason, outcome.message)
    other = replace(end, reason="Ended", message="")
    return [
        _condition(COMPLETE, not outcome.failed, other if outcome.failed else end),
        _condition(FAILED, outcome.failed, end if outcome.failed else other),
    ]
