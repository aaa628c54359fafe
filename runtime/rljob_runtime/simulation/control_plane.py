"""The RLJob at the API server and an operator that does what it is told; tensor parallel sizes, where the job leaves a
choice, it chooses as the real one does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rljob_api import RLJob
from rljob_api.status import (
    Member,
    ParallelismHistory,
    RelayTopology,
    Role,
    RuntimeStatus,
    Target,
    TargetPhase,
    TargetTensorParallel,
)
from rljob_operator.policies import parallelism
from rljob_runtime.coordinator.protocols import Job, PeerTimeout
from rljob_runtime.coordinator.waiting import news
from rljob_runtime.simulation.events import Observe, Reported, unobserved
from rljob_runtime.simulation.wire import DISORDER_SECONDS, LOSS_SHARE, SLOW_MESSAGE_SECONDS, Condition, Life, Trouble

CALL_SECONDS = 5.0
"""After which a call of the API server counts as lost."""


class SimulatedControlPlane:
    """`protocols.ControlPlane`. `latency`: of a call, in seconds. `restless`: layouts change at random after rounds."""

    def __init__(
        self,
        job: RLJob,
        machines: int,
        seed: int = 0,
        latency: float = 0.0,
        observe: Observe = unobserved,
        restless: bool = False,
    ) -> None:
        self.reports: list[RuntimeStatus] = []
        self.unreachable = False
        self.condition = Condition()
        self.life = Life()
        """The coordinator that asks now."""
        self._rng = random.Random(f"{seed}/api")
        self._latency = latency
        self._observe = observe
        self._restless = random.Random(f"{seed}/restless") if restless else None
        self._counted = 0
        self._changed = asyncio.Event()
        self._incarnations = {f"rollout-{index}": 1 for index in range(machines)}
        self._trainer = 1
        self._unplaced: set[str] = set()
        size = job.spec.rollout.tensor_parallel_size
        parallel = TargetTensorParallel(short=size, long=size)
        self._target = Target(revision=1, machines=tuple(self._incarnations), tensor_parallel=parallel)
        self._parallelism: ParallelismHistory | None = None
        self._epoch = 1
        self._job = self._before = job
        self._refresh()
        self._before = self._job

    @property
    def last(self) -> RuntimeStatus:
        """The newest report."""
        return self.reports[-1]

    def incarnation(self, machine: str) -> str:
        """The pod that a machine has now, as `rollout-1.2`."""
        number = self._trainer if machine.startswith("trainer") else self._incarnations[machine]
        return f"{machine}.{number}"

    # --- what the operator does ---

    def replace(self, machine: str) -> None:
        """A new pod for a machine, at once."""
        self._renew(machine)
        self.place(machine)

    def withdraw(self, machine: str) -> None:
        """A machine's pod is gone. The next one is listed, and has no address until `place`."""
        self._renew(machine)
        self._unplaced.add(machine)
        self._refresh()

    def place(self, machine: str) -> None:
        """The pod of a machine runs: it has an address."""
        self._unplaced.discard(machine)
        self._refresh()

    def _renew(self, machine: str) -> None:
        if machine.startswith("trainer"):
            self._trainer += 1
        else:
            self._incarnations[machine] = self._incarnations.get(machine, 0) + 1
        self._epoch += 1

    def scale(self, machines: int) -> None:
        """Another number of machines."""
        names = tuple(f"rollout-{index}" for index in range(machines))
        for name in names:
            self._incarnations.setdefault(name, 1)
        self._epoch += 1
        self._retarget(machines=names)

    def set_tensor_parallel(self, short: int, long: int) -> None:
        """Other layouts for rounds to come."""
        self._retarget(tensor_parallel=TargetTensorParallel(short=short, long=long))

    def _choose_layouts(self, said: RuntimeStatus) -> None:
        rollout, told = self._job.spec.rollout, self._target
        if len(rollout.tensor_parallel_sizes) == 1:
            return
        if self._restless is not None:
            last = said.last_round
            if last is not None and last.round != self._counted:
                self._counted = last.round
                short, long = self._restless.choices(rollout.tensor_parallel_sizes, k=2)
                self.set_tensor_parallel(short, long)
            return
        choice = parallelism.choose(rollout, told, self._parallelism, said.last_round, len(told.machines), said.applied)
        changed, self._parallelism = choice.history != self._parallelism, choice.history
        if choice.sizes != told.tensor_parallel:
            self._retarget(tensor_parallel=choice.sizes, reason="; ".join(choice.reasons))
        elif changed:
            self._refresh()

    def set_phase(self, phase: TargetPhase) -> None:
        """Run or Suspend."""
        self._retarget(phase=phase)

    def set_rounds(self, rounds: int) -> None:
        """A user edits the spec."""
        spec = self._job.spec.model_copy(update={"rounds": rounds})
        self._set(self._job.model_copy(update={"spec": spec}))
        self._refresh()

    def _retarget(self, **changes: Any) -> None:
        self._target = self._target.model_copy(update={**changes, "revision": self._target.revision + 1})
        self._refresh()

    def _refresh(self) -> None:
        trainer = self._member("trainer-0", self._trainer, "10.0.0.1", Role.TRAINER)
        rollouts = [
            self._member(name, incarnation, "10.0.0.2", Role.ROLLOUT)
            for name, incarnation in self._incarnations.items()
        ]
        relay = RelayTopology(epoch=self._epoch, chain=self._target.machines)
        status = self._job.status.model_copy(
            update={
                "members": (trainer, *rollouts),
                "target": self._target,
                "parallelism": self._parallelism,
                "relay": relay,
            }
        )
        self._set(self._job.model_copy(update={"status": status}))

    def _member(self, machine: str, incarnation: int, ip: str, role: Role) -> Member:
        placed = machine not in self._unplaced
        return Member(machine=machine, incarnation=incarnation, ip=ip if placed else None, role=role)

    def _set(self, job: RLJob) -> None:
        self._before, self._job = self._job, job
        self._changed.set()

    # --- ControlPlane ---

    async def observe(self) -> Job:
        await self._travel()
        stale = self._suffers(Trouble.DISORDER) and self._rng.random() < 0.5
        await self._travel()
        return Job(self._before if stale else self._job, str(self._target.revision))

    async def wait_changed(self, seconds: float) -> None:
        await news(self._changed, seconds)

    async def report(self, status: RuntimeStatus) -> None:
        await self._travel()
        self.reports.append(status)
        self._choose_layouts(status)
        self._observe(Reported(status, status.event))
        await self._travel()

    async def _travel(self) -> None:
        """Half of a call. Raises `PeerTimeout` where it is lost; never returns to a coordinator that is no more."""
        seconds = self._latency / 2
        if self._suffers(Trouble.SLOW):
            seconds += SLOW_MESSAGE_SECONDS
        if self._suffers(Trouble.DISORDER):
            seconds += self._rng.uniform(0.0, DISORDER_SECONDS)
        lost = self._suffers(Trouble.CUT) or (self._suffers(Trouble.LOSS) and self._rng.random() < LOSS_SHARE)
        if self.unreachable or lost:
            await asyncio.sleep(CALL_SECONDS if lost else 0.0)
            raise PeerTimeout("the API server does not answer")
        await asyncio.sleep(seconds)
        await self.life.awake()

    def _suffers(self, trouble: Trouble) -> bool:
        return trouble in self.condition or trouble in self.life.condition
