"""Status builder: the operator's part of the status, from observation and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from rljob_api.spec import RLJob
from rljob_api.status import (
    CoordinatorStatus,
    EnvironmentStatus,
    MachineGroup,
    Member,
    RLJobStatus,
    Role,
    RolloutStatus,
)
from rljob_operator.policies.base import single_episode_pods
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.names import coordinator_address, selector_text
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.base.runners import Runners
from rljob_operator.policies.failure.losses import MachineLoss
from rljob_operator.policies.scaling.runner_pools import is_elastic, pool_sizes
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.seal import FORGED


@dataclass(frozen=True)
class StatusBuilder:
    """Input of the status, besides the decisions that it stores for the next reconcile."""

    job: RLJob
    observed: Observed
    machines: Sequence[str]
    """Rollout machines of the target."""
    members: tuple[Member, ...]
    chain_length: int
    pods: int
    losses: tuple[MachineLoss, ...] = ()
    leaving: int = 0
    shapes: Mapping[Role, str] = field(default_factory=dict)
    paused: bool = False
    """Replacement is held after a mass failure."""
    runs: bool = False
    """The job has runners, if it has environments."""

    def facts(self, stall: ConditionReason | None, now: datetime, given_up: int = 0) -> conditions.Facts:
        """Collect the input of the conditions. Machines with an exhausted budget are not waited for."""
        spec, before = self.job.spec, self.job.status
        ready = {pod.machine for pod in self.observed.pods if pod.available}
        found = conditions.Facts(
            generation=self.job.metadata.generation,
            coordinator_ready=self._ready(Role.COORDINATOR) > 0,
            trainers_wanted=spec.trainer.replicas,
            trainers_ready=self._ready(Role.TRAINER),
            rollouts_wanted=len(self.machines),
            rollouts_ready=self._ready(Role.ROLLOUT),
            rollouts_smallest=spec.rollout.smallest,
            chain_length=self.chain_length,
            leaving=self.leaving,
            departing=tuple(member.machine for member in self.members if member.leaving),
            replacing=tuple(m.machine for m in self.members if m.incarnation > 1 and m.machine not in ready),
            pods=self.pods,
            started=before.first_ready_time is not None,
            durable=spec.checkpoint.survives_pods,
            stall=stall,
            paused=ConditionReason("ReplacementPaused", conditions.PAUSED) if self.paused else None,
            problems=self._problems(),
            environments=self._environments(now),
        )
        complete = (
            found.is_ready and found.rollouts_ready >= found.rollouts_wanted - given_up and not found.short_of_runners
        )
        return replace(found, started=found.started or complete)

    def _environments(self, now: datetime) -> tuple[EnvironmentStatus, ...]:
        before = {one.name: one.pool for one in self.job.status.environments}
        pools = pool_sizes(self.job)
        found = []
        for environment in self.job.spec.environments:
            name, pool = environment.name, pools[environment.name]
            seen = self.observed.runners.get(name)
            found.append(
                EnvironmentStatus(
                    name=name,
                    runners=pool.runners if self.runs else 0,
                    ready=self._ready_runners(seen, now),
                    pool=pool if self.runs and is_elastic(environment) else before.get(name),
                )
            )
        return tuple(found)

    def _ready_runners(self, seen: Runners | None, now: datetime) -> int:
        if seen is None:
            return 0
        return single_episode_pods.ready(seen, now, was_ready=self.job.status.first_ready_time is not None)

    def _problems(self) -> tuple[ConditionReason, ...]:
        runtime = self.job.status.runtime
        warnings = tuple(ConditionReason(p.reason, p.message) for p in runtime.warnings) if runtime is not None else ()
        return warnings if self.observed.forged is None else (ConditionReason(FORGED, self.observed.forged), *warnings)

    def status(self, facts: conditions.Facts, now: datetime) -> RLJobStatus:
        """Build the derived part of the status. The caller adds what is remembered."""
        job, before = self.job, self.job.status
        shape = self.shapes.get(Role.ROLLOUT)
        old = before.rollout or RolloutStatus()
        current = [pod for pod in self.observed.pods if pod.role is Role.ROLLOUT and pod.live]
        played = before.runtime.last_round if before.runtime is not None else None
        return before.model_copy(
            update={
                "observed_generation": job.metadata.generation,
                "phase": conditions.phase(facts),
                "conditions": conditions.derive(facts, before, now),
                "coordinator": CoordinatorStatus(
                    ready=facts.coordinator_ready,
                    address=coordinator_address(job),
                    restarts=(before.coordinator.restarts if before.coordinator else 0) + self._lost(Role.COORDINATOR),
                ),
                "trainer": MachineGroup(
                    desired=facts.trainers_wanted,
                    ready=facts.trainers_ready,
                    restarts=(before.trainer.restarts if before.trainer else 0) + self._lost(Role.TRAINER),
                ),
                "rollout": RolloutStatus(
                    desired=facts.rollouts_wanted,
                    ready=facts.rollouts_ready,
                    restarts=old.restarts + self._lost(Role.ROLLOUT),
                    updated=sum(pod.shape == shape for pod in current) if shape is not None else old.updated,
                    tensor_parallel_size=(played and played.tensor_parallel_size)
                    or job.spec.rollout.tensor_parallel_size,
                    selector=selector_text(job.name, Role.ROLLOUT),
                ),
                "environments": facts.environments,
                "members": self.members,
            }
        )

    def _ready(self, role: Role) -> int:
        """Count the machines of a role whose pod is ready; of rollout machines only those of the target."""
        return len(
            {
                pod.machine
                for pod in self.observed.pods
                if pod.role is role and pod.available and (role is not Role.ROLLOUT or pod.machine in self.machines)
            }
        )

    def _lost(self, role: Role) -> int:
        return sum(loss.role is role for loss in self.losses)
