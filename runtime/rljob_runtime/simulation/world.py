"""Simulated machines, the wires to them, and the operator's side of a job: where faults come from.

Everything random comes from one seeded generator, so a seed is a run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rljob_api import RLJob
from rljob_api.status import Member, RelayTopology, Role, RuntimeStatus, Target, TargetPhase
from rljob_runtime.coordinator.hosted import Bounds, HostedRelay, HostedReplica, HostedTrainer
from rljob_runtime.coordinator.protocols import (
    Job,
    PeerGone,
    PeerTimeout,
    Relay,
    Replica,
    RolloutMachine,
    Trainer,
)
from rljob_runtime.coordinator.store import Store
from rljob_runtime.coordinator.waiting import news
from rljob_runtime.simulation.stand_ins import (
    Network,
    SimulatedRelay,
    SimulatedReplica,
    SimulatedTrainer,
    TrainerDisk,
    Weights,
)

T = TypeVar("T")


@dataclass
class Process:
    """Something that can be killed, hung, and started again. `peers` are the stand-ins that live in it."""

    name: str
    peers: dict[str, Any] = field(default_factory=dict)
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    hung: bool = False

    def kill(self) -> None:
        """Its pending calls fail, and so does every later one."""
        self.dead.set()


class SimulatedWire:
    """Calls a stand-in in its process: after a latency, unless the process is dead (gone) or hung (no answer)."""

    def __init__(self, process: Process, peer: object, rng: random.Random, latency: float) -> None:
        self._process = process
        self._peer = peer
        self._rng = rng
        self._latency = latency

    async def call(self, bound: float, method: str, *arguments: Any) -> Any:
        call = asyncio.create_task(self._answer(method, arguments))
        death = asyncio.create_task(self._process.dead.wait())
        try:
            await asyncio.wait({call, death}, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
            if self._process.dead.is_set():
                raise PeerGone(f"{self._process.name} is dead")
            if not call.done():
                raise PeerTimeout(f"{self._process.name}: {method} took more than {bound} s")
            return call.result()
        finally:
            # A caller that gives up does not stop the far end: what it asked for may still happen.
            death.cancel()

    async def _answer(self, method: str, arguments: Sequence[Any]) -> Any:
        await asyncio.sleep(self._latency * self._rng.uniform(0.5, 1.5))
        if self._process.hung:
            await asyncio.sleep(3600)
        answer = await getattr(self._peer, method)(*arguments)
        await asyncio.sleep(self._latency * self._rng.uniform(0.5, 1.5))
        return answer


class World:
    """All machines of a simulated job. `seed` decides latencies; faults are called by the test."""

    def __init__(self, seed: int = 0, replicas_per_machine: int = 1, latency: float = 0.002) -> None:
        self.rng = random.Random(seed)
        self.bounds = Bounds(command=5.0, beat=2.0, load=30.0, start=30.0, train=60.0, join=10.0)
        self.network = Network()
        self.disk = TrainerDisk()
        self.processes: dict[str, Process] = {}
        self.powered_off: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.publish_seconds = 0.0
        self.boots = 0
        self._replicas = replicas_per_machine
        self._latency = latency

    # --- faults ---

    def kill(self, machine: str) -> None:
        """End the machine's actors; they may be made anew on it."""
        process = self.processes.pop(machine, None)
        self.network.relays.pop(machine, None)
        if process is not None:
            process.kill()

    def power_off(self, machine: str) -> None:
        """End the machine: nothing can be made on this incarnation any more."""
        self.powered_off.add(machine)
        self.kill(machine.partition(".")[0])

    def hold_back(self, machine: str) -> asyncio.Event:
        """The machine takes its time: its actors are not made until the event is set."""
        gate = self.gates[machine] = asyncio.Event()
        return gate

    # --- Binding ---

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        process = self.processes.get("trainer")
        if process is None:
            process = self.processes["trainer"] = Process(
                "trainer",
                {"trainer": SimulatedTrainer(self.disk, self.network, publish_seconds=self.publish_seconds)},
            )
        return HostedTrainer(self._wire(process, process.peers["trainer"]), self.bounds)

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> RolloutMachine:
        name = member.machine
        if f"{name}.{member.incarnation}" in self.powered_off:
            await asyncio.sleep(self.bounds.join)
            raise PeerTimeout(f"{name}.{member.incarnation} has not joined")
        if name in self.gates:
            await self.gates[name].wait()
        process = self.processes.get(name) or self._start(name)
        relay: Relay = HostedRelay(name, self._wire(process, process.peers["relay"]), self.bounds)
        replicas: tuple[Replica, ...] = tuple(
            HostedReplica(
                f"{name}/replica-{index}", self._wire(process, process.peers[f"replica-{index}"]), self.bounds
            )
            for index in range(self._replicas)
        )
        return RolloutMachine(member, relay, replicas)

    async def release(self, member: Member) -> None:
        self.kill("trainer" if member.role is Role.TRAINER else member.machine)

    def _start(self, name: str) -> Process:
        self.boots += 1
        weights = Weights()
        relay = self.network.relays[name] = SimulatedRelay(name, weights, self.network)
        process = self.processes[name] = Process(name, {"relay": relay})
        for index in range(self._replicas):
            process.peers[f"replica-{index}"] = SimulatedReplica(
                f"{name}/replica-{index}", weights, boot=f"{self.boots}"
            )
        return process

    def _wire(self, process: Process, peer: object) -> SimulatedWire:
        return SimulatedWire(process, peer, self.rng, self._latency)


class SimulatedControlPlane:
    """The RLJob at the API server and an operator that does what the test says."""

    def __init__(self, job: RLJob, machines: int) -> None:
        self.reports: list[RuntimeStatus] = []
        self.unreachable = False
        self._changed = asyncio.Event()
        self._incarnations = {f"rollout-{index}": 1 for index in range(machines)}
        self._trainer = 1
        self._target = Target(revision=1, machines=tuple(self._incarnations))
        self._epoch = 1
        self._job = job
        self._refresh()

    @property
    def last(self) -> RuntimeStatus:
        """The newest report."""
        return self.reports[-1]

    # --- what the operator does ---

    def replace(self, machine: str) -> None:
        """A new pod for a machine."""
        if machine.startswith("trainer"):
            self._trainer += 1
        else:
            self._incarnations[machine] = self._incarnations.get(machine, 0) + 1
        self._epoch += 1
        self._refresh()

    def scale(self, machines: int) -> None:
        """Another number of machines."""
        names = tuple(f"rollout-{index}" for index in range(machines))
        for name in names:
            self._incarnations.setdefault(name, 1)
        self._epoch += 1
        self._retarget(machines=names)

    def set_phase(self, phase: TargetPhase) -> None:
        """Run or Suspend."""
        self._retarget(phase=phase)

    def set_rounds(self, rounds: int) -> None:
        """A user edits the spec."""
        spec = self._job.spec.model_copy(update={"rounds": rounds})
        self._job = self._job.model_copy(update={"spec": spec})
        self._refresh()

    def _retarget(self, **changes: Any) -> None:
        self._target = self._target.model_copy(update={**changes, "revision": self._target.revision + 1})
        self._refresh()

    def _refresh(self) -> None:
        trainer = Member(machine="trainer-0", incarnation=self._trainer, ip="10.0.0.1", role=Role.TRAINER)
        rollouts = [
            Member(machine=name, incarnation=incarnation, ip="10.0.0.2", role=Role.ROLLOUT)
            for name, incarnation in self._incarnations.items()
        ]
        relay = RelayTopology(epoch=self._epoch, chain=self._target.machines)
        status = self._job.status.model_copy(
            update={"members": (trainer, *rollouts), "target": self._target, "relay": relay}
        )
        self._job = self._job.model_copy(update={"status": status})
        self._changed.set()

    # --- ControlPlane ---

    async def observe(self) -> Job:
        if self.unreachable:
            raise PeerTimeout("the API server does not answer")
        return Job(self._job, str(self._target.revision))

    async def wait_changed(self, seconds: float) -> None:
        await news(self._changed, seconds)

    async def report(self, status: RuntimeStatus) -> None:
        if self.unreachable:
            raise PeerTimeout("the API server does not answer")
        self.reports.append(status)


class InlineStore:
    """The store without its thread: under virtual time there is only one. `before` and `after` each call, a test may
    crash."""

    def __init__(self, store: Store, around: Callable[[str], None] = lambda moment: None) -> None:
        self._store = store
        self._around = around

    async def do(self, work: Callable[[Store], T]) -> T:
        await asyncio.sleep(0)
        self._around("before")
        result = work(self._store)
        self._around("after")
        return result
