"""Control plane: the RLJob at the API server, with a simple operator.

The real operator's policies choose TP sizes and numbers of machines, which machines join and leave, and when their pods
may be deleted.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

from rljob_api import RLJob
from rljob_api.status import (
    ElasticityHistory,
    Finished,
    Member,
    ParallelismHistory,
    RelayTopology,
    RLJobStatus,
    Role,
    RuntimeStatus,
    Target,
    TargetPhase,
    TargetTensorParallel,
)
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.lifecycle import drain, end
from rljob_operator.policies.scaling import autoscaler, parallelism_planner
from rljob_operator.policies.scaling import machines as machine_scaling
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.protocols import Job, PeerTimeout
from rljob_runtime.simulator.core.events import Asked, Observe, Reported, unobserved
from rljob_runtime.simulator.core.network import (
    DISORDER_SECONDS,
    LOSS_SHARE,
    SLOW_MESSAGE_SECONDS,
    Called,
    FaultKind,
    FaultState,
)
from rljob_runtime.simulator.core.process_clock import loop_time

CALL_SECONDS = 5.0
"""Time after which an API call counts as lost."""


class SimulatedControlPlane(Called):
    """`protocols.ControlPlane`.

    `latency`: seconds of a call. `random_layout_changes`: whether layouts change after rounds."""

    def __init__(
        self,
        job: RLJob,
        machines: int,
        seed: int = 0,
        latency: float = 0.0,
        observe: Observe = unobserved,
        random_layout_changes: bool = False,
    ) -> None:
        super().__init__()
        self.reports: list[RuntimeStatus] = []
        self.unreachable = False
        self.condition = FaultState()
        self._rng = random.Random(f"{seed}/api")
        self._latency = latency
        self._observe = observe
        self._layout_changes = random.Random(f"{seed}/restless") if random_layout_changes else None
        self._counted = 0
        self._changed = asyncio.Event()
        self._incarnations = {f"rollout-{index}": 1 for index in range(machines)}
        self._trainer = 1
        self._unplaced: set[str] = set()
        self._leaving: set[str] = set()
        """Machines whose pod is being deleted."""
        self._gone: set[str] = set()
        """Machines without a pod that get none for now."""
        self._drain_since: datetime | None = None
        size = job.spec.rollout.tensor_parallel_size
        parallel = TargetTensorParallel(short=size, long=size)
        self._target = Target(revision=1, machines=tuple(self._incarnations), tensor_parallel=parallel)
        self._parallelism: ParallelismHistory | None = None
        self._elasticity: ElasticityHistory | None = None
        self._epoch = 1
        self._job = self._before = job
        self._refresh()
        self._before = self._job
        self.rounds = job.spec.rounds
        """Number of rounds that the coordinator last learned."""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._job.name

    @property
    def answers(self) -> bool:
        """Whether the operator's own calls succeed."""
        return not self.unreachable and FaultKind.CUT not in self.condition

    @property
    def last(self) -> RuntimeStatus:
        """The newest report."""
        return self.reports[-1]

    @property
    def finished(self) -> Finished | None:
        """The job's end as a coordinator reported it: no further one starts."""
        return self.last.finished if self.reports else None

    def incarnation(self, machine: str) -> str:
        """Return a machine's present pod, as `rollout-1.2`."""
        number = self._trainer if machine.startswith("trainer") else self._incarnations[machine]
        return f"{machine}.{number}"

    # --- what the operator does ---

    def replace(self, machine: str) -> None:
        """Create a new pod for a machine immediately, unless it is leaving."""
        self._renew(machine)
        if self._target.phase is TargetPhase.SUSPEND or machine in self.leaving:
            self._gone.add(machine)
        self.place(machine)

    def ask_to_go(self, machine: str) -> None:
        """Delete a machine's pod. It keeps its place until it has gone: see `replace`."""
        self._leaving.add(machine)
        self._refresh()

    def withdraw(self, machine: str) -> None:
        """Remove a machine's pod. The next one is listed without an address until `place`."""
        self._renew(machine)
        self._unplaced.add(machine)
        self._refresh()

    def place(self, machine: str) -> None:
        """Give a machine's pod an address: it runs."""
        self._unplaced.discard(machine)
        self._refresh()

    def _renew(self, machine: str) -> None:
        self._leaving.discard(machine)
        if machine.startswith("trainer"):
            self._trainer += 1
        else:
            self._incarnations[machine] = self._incarnations.get(machine, 0) + 1
        self._epoch += 1

    def scale(self, machines: int) -> None:
        """Edit the number of machines."""
        rollout = self._job.spec.rollout.model_copy(update={"machines": machines})
        self._respec(rollout=rollout)
        self._want(machine_scaling.wanted_count(rollout))

    def _want(self, count: int, **why: str) -> None:
        names = machine_scaling.choose_machines(self._target.machines, count, self._unplaced)
        for name in names:
            self._incarnations.setdefault(name, 1)
        self._epoch += 1
        self._drain_since = _now()
        self._retarget(machines=names, **why)

    def _choose_number(self, said: RuntimeStatus) -> None:
        applied = (said.applied or 0) >= self._target.revision
        size = autoscaler.desired_machines(self._job.spec, self._elasticity, said.last_round, applied, None, _now())
        self._elasticity = size.history
        if size.why:
            self._want(size.count, reason=size.why)

    @property
    def leaving(self) -> frozenset[str]:
        """Machines whose pods shall be deleted."""
        return frozenset(self._incarnations) - self._gone - set(self._target.machines)

    def dismiss(self) -> list[str]:
        """Delete the leaving pods that may go. Returns their incarnations."""
        gone = drain.drained_machines(self._seen(), self._status(), self._job.spec, _now())
        self._gone |= gone
        if gone:
            self._refresh()
        return [self.incarnation(machine) for machine in sorted(gone)]

    def may_suspend(self) -> bool:
        """Whether all pods of a job that is to be suspended may go."""
        status = self._status()
        ended = end.coordinator_outcome(status) is not None
        return not ended and drain.may_suspend(self._seen(), status, self._job.spec, _now())

    def stop(self) -> list[str]:
        """Delete all pods but the coordinator's. Returns their incarnations."""
        there = [machine for machine in ("trainer-0", *self._incarnations) if machine not in self._gone]
        self._gone |= {"trainer-0", *self._incarnations}
        self._refresh()
        return [self.incarnation(machine) for machine in there]

    def resume(self) -> None:
        """Create pods for the trainer and for the target's machines."""
        for machine in ("trainer-0", *self._target.machines):
            self._renew(machine)
        self.set_phase(TargetPhase.RUN)

    def _seen(self) -> Observed:
        """Return the pods, as far as deletion depends on them."""
        there = [name for name in self._incarnations if name not in self._gone]
        rollouts = [_pod(name, Role.ROLLOUT, ready=name not in self._unplaced) for name in there]
        trainers = [_pod("trainer-0", Role.TRAINER, ready=True)] if "trainer-0" not in self._gone else []
        coordinator = _pod("coordinator-0", Role.COORDINATOR, ready=self.life.alive)
        return Observed(pods=(coordinator, *trainers, *rollouts))

    def _status(self) -> RLJobStatus:
        """Return the complete status, with the coordinator's report."""
        runtime = self.reports[-1] if self.reports else None
        return self._job.status.model_copy(update={"runtime": runtime, "drain_since": self._drain_since})

    def set_tensor_parallel(self, short: int, long: int) -> None:
        """Set the layouts of coming rounds."""
        self._retarget(tensor_parallel=TargetTensorParallel(short=short, long=long))

    def _choose_layouts(self, said: RuntimeStatus) -> None:
        spec, told = self._job.spec, self._target
        rollout = spec.rollout
        if len(rollout.tensor_parallel_sizes) == 1:
            return
        if self._layout_changes is not None:
            last = said.last_round
            if last is not None and last.round != self._counted:
                self._counted = last.round
                short, long = self._layout_changes.choices(rollout.tensor_parallel_sizes, k=2)
                self.set_tensor_parallel(short, long)
            return
        choice = parallelism_planner.choose_tp(
            rollout, told, self._parallelism, said.last_round, len(told.machines), spec.rounds, said.applied
        )
        changed, self._parallelism = choice.history != self._parallelism, choice.history
        if choice.sizes != told.tensor_parallel:
            self._retarget(tensor_parallel=choice.sizes, reason="; ".join(choice.reasons))
        elif changed:
            self._refresh()

    def set_phase(self, phase: TargetPhase) -> None:
        """Set Run or Suspend. A running job has all its pods."""
        self._drain_since = _now()
        if phase is TargetPhase.RUN:
            self._gone -= {"trainer-0", *self._target.machines}
        self._retarget(phase=phase)

    def set_rounds(self, rounds: int) -> None:
        """Edit the number of rounds."""
        self._respec(rounds=rounds)
        self._refresh()

    def _respec(self, **changes: Any) -> None:
        spec = self._job.spec.model_copy(update=changes)
        self._set(self._job.model_copy(update={"spec": spec}))

    def _retarget(self, **changes: Any) -> None:
        self._target = self._target.model_copy(update={**changes, "revision": self._target.revision + 1})
        self._refresh()

    def _refresh(self) -> None:
        members = [
            self._member("trainer-0", self._trainer, "10.0.0.1", Role.TRAINER),
            *(
                self._member(name, incarnation, "10.0.0.2", Role.ROLLOUT)
                for name, incarnation in self._incarnations.items()
            ),
        ]
        relay = RelayTopology(epoch=self._epoch, chain=self._target.machines)
        status = self._job.status.model_copy(
            update={
                "members": tuple(member for member in members if member.machine not in self._gone),
                "target": self._target,
                "parallelism": self._parallelism,
                "relay": relay,
            }
        )
        self._set(self._job.model_copy(update={"status": status}))

    def _member(self, machine: str, incarnation: int, ip: str, role: Role) -> Member:
        placed = machine not in self._unplaced
        leaving = machine in self._leaving or None
        return Member(machine=machine, incarnation=incarnation, ip=ip if placed else None, role=role, leaving=leaving)

    def _set(self, job: RLJob) -> None:
        self._before, self._job = self._job, job
        self._changed.set()

    # --- ControlPlane ---

    async def observe(self) -> Job:
        await self.travel()
        stale = self._has_fault(FaultKind.DISORDER) and self._rng.random() < 0.5
        await self.travel()
        job = self._before if stale else self._job
        if job.spec.rounds != self.rounds:
            self.rounds = job.spec.rounds
            self._observe(Asked(self.rounds))
        return Job(job, str(self._target.revision))

    async def wait_changed(self, seconds: float) -> None:
        await wait_for_event(self._changed, seconds)

    async def report(self, status: RuntimeStatus) -> None:
        await self.travel()
        self.reports.append(status)
        self._choose_layouts(status)
        self._choose_number(status)
        self._observe(Reported(status, status.event))
        await self.travel()

    async def travel(self) -> None:
        """Delay a call by half its latency. Raises `PeerTimeout` if it is lost; never returns to a dead coordinator."""
        seconds = self._latency / 2
        if self._has_fault(FaultKind.SLOW):
            seconds += SLOW_MESSAGE_SECONDS
        if self._has_fault(FaultKind.DISORDER):
            seconds += self._rng.uniform(0.0, DISORDER_SECONDS)
        lost = self._has_fault(FaultKind.CUT) or (self._has_fault(FaultKind.LOSS) and self._rng.random() < LOSS_SHARE)
        if self.unreachable or lost:
            await asyncio.sleep(CALL_SECONDS if lost else 0.0)
            raise PeerTimeout("the API server does not answer")
        await asyncio.sleep(seconds)
        await self.life.awake()

    def _has_fault(self, trouble: FaultKind) -> bool:
        life = self.life
        return any(trouble in condition for condition in (self.condition, life.condition, life.api))


def _pod(machine: str, role: Role, ready: bool) -> Pod:
    return Pod(machine, machine, role, machine, incarnation=1, phase="Running", ready=ready)


def _now() -> datetime:
    return datetime.fromtimestamp(loop_time(), UTC)
