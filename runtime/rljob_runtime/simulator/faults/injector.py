"""Injector: applies a fault plan to a simulated cluster: the start, the end and the effect of each fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from rljob_api.constants import PRE_STOP_PATIENCE, PRE_STOP_POLL_SECONDS
from rljob_runtime.simulator.core.events import FaultBegan, FaultEnded, Observe
from rljob_runtime.simulator.core.network import FaultKind, FaultState
from rljob_runtime.simulator.core.process_clock import Event, loop_time
from rljob_runtime.simulator.episode_side import EpisodeSide
from rljob_runtime.simulator.faults.plan import Fault, FaultPlan, FaultType, Role, role_of
from rljob_runtime.simulator.peers.cluster import Machine, SimulatedCluster
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from rljob_runtime.simulator.peers.engines.kv_memory import KvMemory
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from rljob_runtime.simulator.peers.trainer import TRAINER

TROUBLES = {
    FaultType.HANG: FaultKind.FROZEN,
    FaultType.SLOW: FaultKind.SLOW,
    FaultType.PARTITION: FaultKind.CUT,
    FaultType.LOSS: FaultKind.LOSS,
    FaultType.DUPLICATION: FaultKind.DUPLICATION,
    FaultType.REORDERING: FaultKind.DISORDER,
    FaultType.CLOCK: FaultKind.SKEWED,
}

Undo = Callable[[], None]


class CoordinatorHost:
    """The coordinator's machine, whose faults outlive a coordinator. The run starts and kills coordinators."""

    def __init__(self) -> None:
        self.condition, self.api = FaultState(), FaultState()
        """Faults of the machine, and of its link to the API server."""
        self.full_disk = 0
        self.lost_disk = False
        """Whether its store was deleted; the next coordinator finds none."""
        self.crashes = asyncio.Event()
        self.asked = asyncio.Event()
        """Set when its pod received SIGTERM."""
        self.returned = Event()
        self.absent = 0
        """Number of crashes in force: it cannot start before their end."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the condition or the disk changed."""

    def move(self) -> None:
        """Place the next coordinator on another machine, without this machine's faults."""
        self.condition, self.api = FaultState(), FaultState()


class Injector:
    """Applies faults. Faults of one kind on one target may overlap; each ends separately."""

    def __init__(
        self,
        world: SimulatedCluster,
        control: SimulatedControlPlane,
        rewards: SimulatedRewards,
        host: CoordinatorHost,
        observe: Observe,
        episodes: EpisodeSide,
    ) -> None:
        self._world = world
        self._control = control
        self._rewards = rewards
        self._reward_condition = FaultState()
        self._host = host
        self._observe = observe
        self._episodes = episodes

    def schedule(self, plan: FaultPlan) -> None:
        """Schedule the plan from now on, its second 0."""
        for fault in plan.faults:
            asyncio.get_running_loop().call_later(fault.time, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        since = loop_time()
        self._observe(FaultBegan(str(fault)))
        undo = self._apply(fault)

        def end() -> None:
            undo()
            self._observe(FaultEnded(str(fault), fault.target, since))

        asyncio.get_running_loop().call_later(fault.duration, end)

    def _apply(self, fault: Fault) -> Undo:
        match role_of(fault.target):
            case Role.REPLICA | Role.RELAY | Role.TRAINER:
                return self._on_process(fault)
            case Role.MACHINE:
                return self._on_machine(fault)
            case Role.REWARDS:
                return self._on_rewards(fault)
            case Role.COORDINATOR:
                return self._on_coordinator(fault)
            case Role.COORDINATOR_API:
                return _trouble(self._host.api, fault.kind, lambda: None)
            case Role.GATEWAY | Role.RUNNER:
                return _on_episodes(self._episodes, fault)
            case Role.API:
                return _trouble(self._control.condition, fault.kind, lambda: None)

    # --- processes ---

    def _on_process(self, fault: Fault) -> Undo:
        world, name = self._world, fault.target
        match fault.kind:
            case FaultType.CRASH:
                world.kill_process(name)
                return _counted(world.absent, name)
            case FaultType.LEAVE:
                return self._trainer_leaves()
            case FaultType.DISK_FULL:
                return self._full_disk(name.partition("/")[0])
            case FaultType.LAYOUT_REFUSED:
                return _counted(world.refusing, name)
            case _:
                return _trouble(world.condition(name), fault.kind, lambda: self._refresh(name))

    def _refresh(self, name: str) -> None:
        process = self._world.process(name)
        if process is not None:
            process.refresh()

    def _full_disk(self, machine: str) -> Undo:
        """Fill a disk: the trainer's checkpoint volume, or a rollout machine's shared memory for weights."""
        disk = self._world.disk if machine == TRAINER else self._world.machine(machine).weights
        disk.full += 1

        def undo() -> None:
            disk.full -= 1

        return undo

    def _trainer_leaves(self) -> Undo:
        """Delete the trainer's pod gracefully.

        It waits as `entrypoints.pre_stop` does: until it is drained, no coordinator is alive, or its time is over."""
        leaving = self._control.incarnation("trainer-0")
        self._control.ask_to_go("trainer-0")

        def gone() -> None:
            if self._control.incarnation("trainer-0") == leaving:
                self._world.power_off(leaving)
                self._control.replace("trainer-0")

        def look(silent: int) -> None:
            silent = 0 if self._control.life.alive else silent + 1
            if self._world.process(TRAINER) is None or silent >= PRE_STOP_PATIENCE:
                gone()
            elif self._control.incarnation("trainer-0") == leaving:
                asyncio.get_running_loop().call_later(PRE_STOP_POLL_SECONDS, look, silent)

        look(0)
        return gone

    # --- machines ---

    def _on_machine(self, fault: Fault) -> Undo:
        name = TRAINER if fault.target == "trainer-0" else fault.target
        machine: Machine = self._world.machine(name)
        match fault.kind:
            case FaultType.CRASH:
                self._world.power_off(self._control.incarnation(fault.target))
                return lambda: self._control.replace(fault.target)
            case FaultType.DISK_FULL:
                return self._full_disk(name)
            case FaultType.KV_DAMAGED:
                return _damage_kv(machine.kv)
            case _:
                return _trouble(machine.condition, fault.kind, machine.refresh)

    # --- the coordinator's pod ---

    def _on_rewards(self, fault: Fault) -> Undo:
        if fault.kind is not FaultType.CRASH:
            return _trouble(self._reward_condition, fault.kind, self._pace_rewards)
        self._rewards.crash()
        # The pool restarts its workers; until then nothing is scored.
        return _trouble(self._reward_condition, FaultType.HANG, self._pace_rewards)

    def _pace_rewards(self) -> None:
        self._rewards.pace.set(self._reward_condition.rate)

    def _on_coordinator(self, fault: Fault) -> Undo:
        host = self._host
        match fault.kind:
            case FaultType.CRASH | FaultType.DISK_LOST:
                host.lost_disk |= fault.kind is FaultType.DISK_LOST
                host.absent += 1
                host.crashes.set()

                def back() -> None:
                    host.absent -= 1
                    host.returned.fire()

                return back
            case FaultType.LEAVE:
                life = self._control.life
                host.asked.set()

                def kill() -> None:
                    if self._control.life is life and life.alive:
                        host.crashes.set()

                return kill
            case FaultType.DISK_FULL:
                host.full_disk += 1
                host.changed()

                def space() -> None:
                    host.full_disk -= 1
                    host.changed()

                return space
            case FaultType.CLOCK:
                return self._fast_coordinator()
            case _:
                # Another coordinator may run there at the end.
                return _trouble(host.condition, fault.kind, lambda: host.changed())

    def _fast_coordinator(self) -> Undo:
        """Speed up the coordinator's clock. It compares its clock with no other, so all others run slow instead."""
        undo = [
            _trouble(machine.condition, FaultType.SLOW, machine.refresh)
            for machine in list(self._world.machines.values())
        ]

        def end() -> None:
            for one in undo:
                one()

        return end


def _on_episodes(episodes: EpisodeSide, fault: Fault) -> Undo:
    """Apply a fault to the gateway or to a runner."""
    part = episodes.gateway if fault.target == Role.GATEWAY else episodes.runner(fault.target)
    if fault.kind is not FaultType.CRASH:
        return _trouble(part.condition, fault.kind, part.refresh)
    part.crash()
    return part.come_back


def _counted(counter: Counter[str], name: str) -> Undo:
    """Count a fault of this process, and one less when it ends: faults may overlap."""
    counter[name] += 1

    def undo() -> None:
        counter[name] -= 1

    return undo


def _damage_kv(memory: KvMemory) -> Undo:
    memory.damaging += 1

    def undo() -> None:
        memory.damaging -= 1

    return undo


def _trouble(condition: FaultState, kind: FaultType, changed: Callable[[], None]) -> Undo:
    trouble = TROUBLES[kind]
    condition.begin(trouble)
    changed()

    def undo() -> None:
        condition.end(trouble)
        changed()

    return undo
