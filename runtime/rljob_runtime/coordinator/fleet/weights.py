"""Fleet weights: brings every member to the current version, in the target layout.

New versions and newcomers take the same path, because machines join while a version is on its way. A layout switch
drops the weights of an engine, so that it shares one lock with the loading of weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.broadcast import Broadcast, PushWeights
from rljob_runtime.coordinator.fleet.failure_detector import FailureDetector
from rljob_runtime.coordinator.fleet.layouts import Layouts
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, loss_reason_for
from rljob_runtime.coordinator.fleet.view import FleetView
from rljob_runtime.coordinator.reporting.layout_stats import Visit, VisitTotals
from rljob_runtime.protocols import PeerError, Replica, StaleTerm, WrongVersion
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout

log = logging.getLogger(__name__)


class FleetWeights:
    """The weight version of a fleet, and who holds it. `version` is None while no version may be used."""

    def __init__(
        self,
        fleet: FleetView,
        broadcast: Broadcast,
        layouts: Layouts,
        detector: FailureDetector,
        term: int,
        settings: Settings,
    ) -> None:
        self._fleet = fleet
        self._broadcast = broadcast
        self._layouts = layouts
        self._detector = detector
        self._term = term
        self._settings = settings
        self._changing = asyncio.Lock()
        self._requested = asyncio.Event()
        self._push: PushWeights | None = None
        self._bring: Callable[[int, PushWeights], Awaitable[None]] = self.load_everywhere
        """How newcomers get the current version: in the same way as the others."""
        self.version: int | None = None
        self.no_source = False
        """Whether no relay holds the current version and the trainer that could push it is lost."""
        self.visits = VisitTotals()

    # --- queries ---

    @property
    def newest_version(self) -> int:
        """The highest version that any relay holds; 0 for none."""
        versions = (machine.complete_version for machine in self._fleet.joined.values())
        return max((version for version in versions if version is not None), default=0)

    @property
    def broadcast_seconds(self) -> float | None:
        """Duration of the last broadcast of a new version; None before the first one."""
        return self._broadcast.seconds

    @property
    def changing(self) -> bool:
        """Whether a version or a layout is on its way."""
        return self._changing.locked()

    def loaded(self) -> list[RolloutMachine]:
        """Return the machines whose replicas hold the current version, by name."""
        if self.version is None:
            return []
        joined = self._fleet.joined
        return [joined[name] for name in sorted(joined) if joined[name].loaded_version == self.version]

    def replicas(self) -> dict[str, Replica]:
        """Return the replicas that hold the current version, by name."""
        return {replica.name: replica for machine in self.loaded() for replica in machine.replicas}

    # --- versions ---

    async def load_everywhere(self, version: int, push: PushWeights, force: bool = False) -> None:
        """Load `version` into the relay and the replicas of every member.

        Machines that fail are marked lost; one that joins meanwhile gets it later (`load_newcomers`). With `force` it
        is pushed even if the master holds it. Stops early when the version is forgotten. Raises what `push` raises.
        """
        async with self._changing:
            if self.version is not None and version < self.version:
                return
            self.version, self._push, self._bring = version, push, self.load_everywhere
            complete = await self._broadcast.push_to_relays(version, push, force, lambda: self.version == version)
            if self.version != version:
                return
            await asyncio.gather(*(machine.run_unless_left(self._load(machine, version)) for machine in complete))
            self._broadcast.report(self.version)
        self._fleet.notify()

    async def broadcast(self, version: int, push: PushWeights, force: bool = False) -> None:
        """Push `version` to every relay. Each replica loads it when it is idle (Laminar, section 3).

        A broadcast of an earlier version that is still running stops.
        """
        if self.version is not None and version < self.version:
            return
        self.version, self._push, self._bring = version, push, self.broadcast
        async with self._changing:
            complete = await self._broadcast.push_to_relays(version, push, force, lambda: self.version == version)
            if self.version != version:
                return
            for machine in complete:
                self._detector.record_success(machine.name)
            self._broadcast.report(self.version)
        self._fleet.notify()

    def request(self) -> None:
        """Have `load_newcomers` bring the current version to a machine that lacks it."""
        self._requested.set()

    async def load_newcomers(self) -> None:
        """Bring the current version to machines that joined late, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            version = self.version
            if version is not None and self._push is not None:
                try:
                    await self._bring(version, self._push)
                except StaleTerm:
                    raise
                except TrainerLost as error:
                    log.warning("no relay holds version %d, and the trainer is lost: %s", version, error)
                    # The version may have been forgotten meanwhile.
                    self.no_source = self.version == version
                    self._fleet.notify()
                except PeerError as error:
                    log.warning("version %d does not reach newcomers yet: %s", version, error)
                    await asyncio.sleep(self._settings.heartbeat)
                    self._requested.set()

    def forget(self) -> None:
        """Stop using the current version: the trainer may not hold it. Nothing is launched before the next one."""
        self.version, self.no_source = None, False

    async def _load(self, machine: RolloutMachine, version: int) -> None:
        needs_layout = self._layouts.needs_switch(machine.name, machine.tensor_parallel)
        if machine.loaded_version == version and not needs_layout:
            # It may be about to switch: newcomers do not wait for it.
            return
        async with self._holding(machine):
            await self._load_alone(machine, version)

    async def _load_alone(self, machine: RolloutMachine, version: int) -> None:
        if machine.loaned:
            return
        # A machine that joined during a layout switch has the former layout.
        await self._apply_layout(machine)
        if machine.loaded_version == version or not self._fleet.is_member(machine):
            return
        try:
            loaded = set(await asyncio.gather(*(self._load_replica(one, version) for one in machine.replicas)))
            if loaded - {version}:
                raise WrongVersion(f"version {version} was requested, loaded are {sorted(loaded)}")
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, "WeightsNotLoaded", error)
        else:
            machine.loaded_version = version
            self._detector.record_success(machine.name)
            self._fleet.notify()

    async def _load_replica(self, replica: Replica, version: int) -> int:
        with self._fleet.timeline.during(replica.name, "load", version=version):
            return await replica.load(self._term, version)

    # --- layouts ---

    async def switch_layout(self, layout: RoundLayout, requested: Collection[int]) -> None:
        """Switch all machines to this layout. No replica generates meanwhile, and all weights have to be loaded again.

        Machines that refuse keep their layout, machines that fail are marked lost. `requested`: see
        `Layouts.set_target`. If nothing changes, this does not wait for a version that is on its way.
        """
        joined = self._fleet.joined
        needed = any(self._layouts.needs_switch(one.name, one.tensor_parallel) for one in joined.values())
        if self._layouts.is_target(layout, requested) and not needed:
            return
        async with self._changing:
            self._layouts.set_target(layout, requested)
            await asyncio.gather(*(one.run_unless_left(self._change_layout(one)) for one in list(joined.values())))
        self._fleet.notify()

    async def relayout(self, machine: RolloutMachine, tensor_parallel: int) -> dict[str, float]:
        """Switch one machine inside a round and load the current version, while others generate.

        Its responses must have been stopped. A machine that refuses keeps its layout, one that fails is marked lost.
        Returns the seconds of each part.
        """
        clock = asyncio.get_running_loop().time
        async with machine.changing:
            if not self._fleet.is_member(machine):
                return {}
            self._layouts.set_size(machine.name, tensor_parallel)
            await machine.run_unless_left(self._apply_layout(machine))
            seconds, since = self._layouts.drain_parts(machine.name), clock()
            if (version := self.version) is not None and self._fleet.is_member(machine):
                await machine.run_unless_left(self._load_alone(machine, version))
                seconds["load"] = clock() - since
        self._fleet.notify()
        return seconds

    async def visit_layout(
        self,
        machine: RolloutMachine,
        tensor_parallel: int,
        version: int,
        work: Callable[[], Awaitable[None]],
        may_overrun: bool = False,
    ) -> Visit:
        """Have a resting machine do `work` in another layout, and return to its own. `version`: of its weights.

        Any caller that needs the machine meanwhile waits for it (`visits`). `may_overrun`: whether that is foreseen.
        `work` is not done on a machine that refuses the layout, or fails. Returns the seconds of each part.
        """
        visit, clock = Visit(), asyncio.get_running_loop().time
        async with machine.changing:
            if not self._fleet.is_member(machine) or machine.loaned or machine.loaded_version != version:
                return visit
            machine.visits, machine.may_overrun = True, may_overrun
            try:
                visit.there = await self._go(machine, tensor_parallel)
                if machine.tensor_parallel == tensor_parallel and self._fleet.is_member(machine):
                    since = clock()
                    loaded = await machine.run_unless_left(self._load_to_measure(machine, version))
                    visit.there["load"] = clock() - since
                    visit.reached = bool(loaded) and self._fleet.is_member(machine)
                    if visit.reached:
                        await work()
                visit.back = await self._go(machine, None)
            finally:
                self._layouts.visit(machine.name, None)
                machine.visits = False
        return visit

    async def _load_to_measure(self, machine: RolloutMachine, version: int) -> bool:
        """Load `version`, or a newer one that the relay has by then, and return whether that succeeded.

        Any weights show the speed. The machine still counts as one without weights: no stage begins on it."""
        try:
            await asyncio.gather(*(self._load_replica(one, version) for one in machine.replicas))
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, "WeightsNotLoaded", error)
            return False
        self._detector.record_success(machine.name)
        return True

    async def _go(self, machine: RolloutMachine, visited: int | None) -> dict[str, float]:
        """Bring a resting machine to the layout that it visits, or back; return the seconds of each part."""
        self._layouts.visit(machine.name, visited)
        if self._fleet.is_member(machine):
            await machine.run_unless_left(self._apply_layout(machine))
        return self._layouts.drain_parts(machine.name)

    @asynccontextmanager
    async def _holding(self, machine: RolloutMachine) -> AsyncIterator[None]:
        """Hold the machine, and count the time if it is not back from a visit."""
        visits, foreseen, clock = machine.visits, machine.may_overrun, asyncio.get_running_loop().time
        since = clock()
        async with machine.changing:
            if visits:
                self.visits.record_delay(clock() - since, foreseen)
            yield

    async def _change_layout(self, machine: RolloutMachine) -> None:
        async with self._holding(machine):
            await self._apply_layout(machine)

    async def _apply_layout(self, machine: RolloutMachine) -> None:
        if not self._layouts.needs_switch(machine.name, machine.tensor_parallel):
            return
        machine.loaded_version = None
        # Its replicas get no requests meanwhile, and lose those that they hold.
        machine.replicas = ()
        self._fleet.notify()
        try:
            with self._fleet.timeline.during(f"{machine.name}/machine", "switch layout"):
                machine.tensor_parallel, machine.replicas = await self._layouts.apply(
                    machine.peers, machine.tensor_parallel
                )
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, loss_reason_for(error), error)
