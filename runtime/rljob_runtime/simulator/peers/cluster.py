"""Simulated cluster: the machines and processes of a job (`protocols.Backend`), on which faults take effect.

All randomness comes from one seed, by name, so that a process's draws do not depend on others.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_api.status import Member, Role
from rljob_runtime.protocols import MachinePeers, PeerTimeout, Trainer
from rljob_runtime.protocols.remote import CallTimeouts, RemoteRelay, RemoteReplica, RemoteTrainer, RemoteWorker
from rljob_runtime.simulator.core.events import Observe, ProcessEnded, ProcessStarted, unobserved
from rljob_runtime.simulator.core.network import Called, FaultKind, FaultState, Process, SimulatedWire
from rljob_runtime.simulator.core.process_clock import ProcessClock
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind, Lengths, steady
from rljob_runtime.simulator.peers.engines.kv_memory import KvMemory
from rljob_runtime.simulator.peers.engines.refused_layouts import RefusedLayouts
from rljob_runtime.simulator.peers.engines.replica import Engines, SimulatedReplica
from rljob_runtime.simulator.peers.gradient_worker import SimulatedWorker
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.relay import Network, SimulatedRelay, Weights
from rljob_runtime.simulator.peers.trainer import TRAINER, GradientInboxes, SimulatedTrainer, TrainerCosts, TrainerDisk

SHORT_BOUNDS = CallTimeouts(
    command=5.0, poll=5.0, heartbeat=2.0, load=30.0, start=30.0, train=60.0, join=10.0, gradients=20.0, release=20.0
)
"""Timeouts for jobs whose rounds take seconds."""

HEAD_SECONDS = 15.0
"""Time after which Ray's head declares a silent node dead and notifies callers of its actors."""


@dataclass(frozen=True)
class ClusterSpec:
    """Machines and their speed, in seconds."""

    replicas: int = 1
    """Per rollout machine, in its first layout."""
    lendable: bool = False
    """Whether each machine has a gradient worker."""
    shares_accelerators: bool = False
    """Whether the worker uses the replicas' accelerators: then only one of them has the memory."""
    engine: EngineKind = field(default_factory=lambda: steady(0.02))
    tensor_parallel: int = 1
    """TP size of the first layout, the smallest; `engine` belongs to it."""
    wider: tuple[tuple[int, EngineKind], ...] = ()
    """Engines of further layouts, by TP size."""
    layout_seconds: float = 0.0
    """To switch a machine's layout."""
    build_seconds: float = 0.0
    """More, for the first engine of a size in an engine slot."""
    lengths: Lengths | None = None
    latency: float = 0.002
    """Mean latency of a message."""
    hop_seconds: float = 0.2
    transfer_seconds: float = 0.0
    bounds: CallTimeouts = SHORT_BOUNDS


@dataclass
class Machine:
    """A pod: processes start and end, its shared memory stays while it lives."""

    condition: FaultState = field(default_factory=FaultState)
    weights: Weights = field(default_factory=Weights)
    kv: KvMemory = field(default_factory=KvMemory)
    processes: dict[str, Process] = field(default_factory=dict)
    off: bool = False
    """Whether it has no power: nothing on it answers."""
    incarnation: int = 0
    """Owner of these processes."""

    def refresh(self) -> None:
        """Apply a changed condition."""
        for process in self.processes.values():
            process.refresh()


class SimulatedCluster(Called):
    """All machines of a simulated job. `seed` determines latencies and which messages are lost."""

    def __init__(
        self,
        seed: int = 0,
        site: ClusterSpec | None = None,
        costs: TrainerCosts | None = None,
        observe: Observe = unobserved,
    ) -> None:
        self.site = site or ClusterSpec()
        super().__init__()
        self.costs = costs or TrainerCosts()
        self.network = Network(self.site.hop_seconds, self.site.transfer_seconds, roads=self)
        self.disk = TrainerDisk()
        self.machines: dict[str, Machine] = {}
        self.absent: Counter[str] = Counter()
        """Processes that cannot start, and incarnations of machines without power."""
        self.refusing: Counter[str] = Counter()
        """Replicas whose engines of further layouts do not start."""
        self._own: defaultdict[str, FaultState] = defaultdict(FaultState)
        self._gates: dict[str, asyncio.Event] = {}
        self._ended: set[str] = set()
        """Incarnations whose actors were ended by a head that could not reach them."""
        self._boots = 0
        self._seed = seed
        self._observe = observe

    # --- questions ---

    def process(self, name: str) -> Process | None:
        """Return a running process: `trainer`, `rollout-0/relay`, `rollout-0/replica-1`."""
        return self.machine(name.partition("/")[0]).processes.get(name)

    def condition(self, name: str) -> FaultState:
        """Return a process's own faults, which persist across restarts."""
        return self._own[name]

    def machine(self, name: str) -> Machine:
        """Return a machine by name, including `trainer`."""
        return self.machines.setdefault(name, Machine())

    def open(self, sender: str, receiver: str) -> bool:
        """Implement `relay.NetworkLinks`."""
        ends = [self.process(name if name == TRAINER else f"{name}/relay") for name in (sender, receiver)]
        return all(
            process is not None and not process.has_fault(FaultKind.CUT) and not process.has_fault(FaultKind.FROZEN)
            for process in ends
        )

    def answers(self, sender: str, receiver: str) -> bool:
        """Implement `relay.NetworkLinks`."""
        ways = [
            condition
            for name in (sender, receiver)
            for condition in (self.machine(name).condition, self._own[f"{name}/relay"])
        ]
        return not self.machine(receiver).off and not any(FaultKind.CUT in condition for condition in ways)

    # --- faults ---

    def kill(self, machine: str) -> None:
        """End all processes of a machine and clear its memory; they may start again."""
        self._end(machine)
        self.machine(machine).weights, self.machine(machine).kv = Weights(), KvMemory()

    def kill_process(self, name: str) -> None:
        """End one process. Its machine's memory stays."""
        machine = self.machine(name.partition("/")[0])
        process = machine.processes.pop(name, None)
        if process is not None:
            if isinstance(process.peer, SimulatedRelay):
                self.network.relays.pop(process.peer.machine, None)
            process.kill(told_after=HEAD_SECONDS if machine.off else 0.0)
            self._observe(ProcessEnded(name))

    def power_off(self, incarnation: str) -> None:
        """Power off a machine (`rollout-1.2`): nothing can start on this incarnation.

        A rollout machine is silent until the head declares it dead; the trainer's processes end together, each seen by
        the others."""
        self.absent[incarnation] += 1
        machine = incarnation.partition(".")[0]
        if machine.startswith(TRAINER):
            self.kill(TRAINER)
        else:
            self.machine(machine).off = True
            self.kill(machine)

    def hold_back(self, machine: str) -> asyncio.Event:
        """Delay the start of a machine's processes until the returned event is set."""
        gate = self._gates[machine] = asyncio.Event()
        return gate

    def _end(self, machine: str) -> None:
        for name in list(self.machine(machine).processes):
            self.kill_process(name)

    # --- Backend ---

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        await self._expect(TRAINER, *map(_incarnation, members))
        self._apply_tables(TRAINER, members)
        process = self.process(TRAINER)
        if process is None:
            pace = ProcessClock()
            peer = SimulatedTrainer(self.disk, self.network, self.costs, pace, self._observe)
            process = self._start(TRAINER, peer, pace)
        return RemoteTrainer(self._wire(process), self.site.bounds)

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        self._apply_tables(TRAINER, members)
        return self.process(TRAINER) is not None

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        name = member.machine
        parts = [f"{name}/replica-{index}" for index in range(self.site.replicas)]
        workers = [f"{name}/worker"] if self.site.lendable else []
        await self._expect(_incarnation(member), f"{name}/relay", *parts, *workers)
        self._apply_tables(name, (member,))
        if name in self._gates:
            await self._gates[name].wait()
        self.machine(name).incarnation = member.incarnation
        relay = self.process(f"{name}/relay") or self._start_relay(name)
        replicas = [self.process(part) or self._start_replica(part) for part in parts]
        return MachinePeers(
            member,
            RemoteRelay(name, self._wire(relay), self.site.bounds),
            tuple(RemoteReplica(process.name, self._wire(process), self.site.bounds) for process in replicas),
            self.site.tensor_parallel,
            self._worker(name) if self.site.lendable else None,
            self.site.lendable and self.site.shares_accelerators,
        )

    async def release(self, member: Member) -> None:
        """End the actors of a pod: immediately if the head reaches them, else when a head with its tables does."""
        name = TRAINER if member.role is Role.TRAINER else member.machine
        condition = self.machine(name).condition
        out_of_reach = (
            FaultKind.CUT in self.life.condition or FaultKind.CUT in condition or FaultKind.FROZEN in condition
        )
        theirs = member.role is Role.TRAINER or member.incarnation >= self.machine(name).incarnation
        if theirs and out_of_reach:
            self._ended.add(_incarnation(member))
        elif theirs:
            self._end(name)

    def _apply_tables(self, machine: str, members: Sequence[Member]) -> None:
        """Reach a pod's actors: those that a former head has ended are gone."""
        ended = self._ended & set(map(_incarnation, members))
        if ended and FaultKind.CUT not in self.life.condition:
            self._ended -= ended
            self._end(machine)

    async def _expect(self, *names: str) -> None:
        """Raise unless these processes can start and their machines have joined."""
        missing = [name for name in names if self.absent[name]]
        if missing:
            await asyncio.sleep(self.site.bounds.join)
            raise PeerTimeout(f"{missing[0]} has not joined")

    def _start_relay(self, machine: str) -> Process:
        relay = SimulatedRelay(machine, self.machine(machine).weights, self.network, self._observe)
        self.network.relays[machine] = relay
        return self._start(f"{machine}/relay", relay, ProcessClock())

    def _start_replica(self, name: str) -> Process:
        site, machine = self.site, name.partition("/")[0]
        host = self._host(machine, lambda: not any(one.holds for one in self._workers_of(machine)))
        own = {site.tensor_parallel: site.engine, **dict(site.wider)}
        layouts = RefusedLayouts(own, site.tensor_parallel, lambda: self.refusing[name] > 0)
        engines = Engines(site.engine, site.lengths, layouts, site.layout_seconds, site.build_seconds)
        replica = SimulatedReplica(name, host, engines, boot=f"{self._boots + 1}", kv=self.machine(machine).kv)
        return self._start(name, replica, host.pace)

    def _host(self, machine: str, others_rest: Callable[[], bool]) -> Host:
        """Return what a new process finds there: room, unless it shares accelerators with others that hold memory."""

        def room() -> bool:
            return not self.site.shares_accelerators or others_rest()

        return Host(self.machine(machine).weights, ProcessClock(), self._observe, room)

    def _workers_of(self, machine: str) -> list[SimulatedWorker]:
        return [one.peer for one in self.machine(machine).processes.values() if isinstance(one.peer, SimulatedWorker)]

    def _all_rest(self, machine: str) -> bool:
        peers = [process.peer for process in self.machine(machine).processes.values()]
        return all(peer.rests for peer in peers if isinstance(peer, SimulatedReplica))

    def _worker(self, machine: str) -> RemoteWorker:
        name, host = f"{machine}/worker", self._host(machine, lambda: self._all_rest(machine))
        process = self.process(name) or self._start(
            name, SimulatedWorker(machine, host, lambda: self._inboxes_from(machine), self.costs), host.pace
        )
        return RemoteWorker(machine, self._wire(process), self.site.bounds)

    def _inboxes_from(self, machine: str) -> GradientInboxes | None:
        """Return the trainer's inboxes if this machine can connect to it."""
        trainer, worker = self.process(TRAINER), self.process(f"{machine}/worker")
        if trainer is None or worker is None or any(p.has_fault(FaultKind.CUT) for p in (trainer, worker)):
            return None
        peer: SimulatedTrainer = trainer.peer
        return peer.inboxes

    def _start(self, name: str, peer: object, pace: ProcessClock) -> Process:
        machine = self.machine(name.partition("/")[0])
        machine.off = False
        self._boots += 1
        process = machine.processes[name] = Process(name, peer, (self._own[name], machine.condition), pace)
        process.refresh()
        self._observe(ProcessStarted(name, self._boots))
        return process

    def _wire(self, process: Process) -> SimulatedWire:
        rng = random.Random(f"{self._seed}/{process.name}/{self._boots}")
        return SimulatedWire(process, rng, self.site.latency, self.life)


def _incarnation(member: Member) -> str:
    return f"{member.machine}.{member.incarnation}"
