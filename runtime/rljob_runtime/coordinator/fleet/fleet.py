"""The rollout machines: who is here, the chain over their relays, and which weights they hold.

Each machine that the operator names has one keeper task: it makes or finds the machine's actors, seats it, and starts
over with a back-off when it is lost. `bring` takes every seated machine to a weight version; it is the one way by
which weights reach replicas, for a new version as for a newcomer. Losing a machine is hasty and reversible.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from rljob_api.constants import KEEPS_FAILING
from rljob_api.status import Member
from rljob_runtime.coordinator.core.async_utils import BackgroundTasks
from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.absent_machines import AbsentMachines
from rljob_runtime.coordinator.fleet.broadcast import NOT_SHIPPED, Broadcast, PushWeights
from rljob_runtime.coordinator.fleet.failure_detector import SILENT, FailureDetector
from rljob_runtime.coordinator.fleet.layouts import Layouts
from rljob_runtime.coordinator.fleet.machine import RESTING, RolloutMachine, loss_reason, machine_of
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import Backend, PeerError, Refused, Replica, StaleTerm, WrongVersion
from rljob_runtime.scheduling.fault_detection.stall_detection import RestartHistory

log = logging.getLogger(__name__)


class Fleet:
    """`on_change` is called whenever a machine was seated with weights, or lost."""

    def __init__(self, binding: Backend, term: int, settings: Settings, reporter: Reporter) -> None:
        self._binding = binding
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._machines: dict[str, RolloutMachine] = {}
        self._keepers: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._former: dict[str, dict[int, Member]] = {}
        """By machine: incarnations before the one that is kept, whose actors nobody has ended yet."""
        self._absences = AbsentMachines(settings.join_tries, reporter)
        self._broadcast = Broadcast(self, term, settings, reporter)
        self._bringing = asyncio.Lock()
        self._relapses = RestartHistory(settings.again_within)
        self._ship: PushWeights | None = None
        self._feed: Callable[[int, PushWeights], Awaitable[None]] = self.bring
        """How newcomers come to the version in hand: as the others did."""
        self._arrival = asyncio.Event()
        self._pulse = FailureDetector(self, self._broadcast.names, term, settings, reporter)
        self.look = self._pulse.look
        self._asides = BackgroundTasks()
        self.aside = self._asides.start
        self.layouts = Layouts(term, settings.tensor_parallel, reporter, settings.join_patience)
        self.on_change: Callable[[], None] = lambda: None
        self._model_files: asyncio.Future[dict[str, bytes]] = asyncio.get_running_loop().create_future()
        self.version: int | None = None
        self.starved = False
        """Nobody here holds the version in hand, and the trainer that could ship it is lost."""

    # --- questions ---

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of the seated machines."""
        return tuple(sorted(self._machines))

    @property
    def seated(self) -> Mapping[str, RolloutMachine]:
        """The seated machines by name, now."""
        return self._machines

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the machines that are here or on their way."""
        return tuple(sorted(self._keepers))

    @property
    def newest_seen(self) -> int:
        """The highest version that any relay holds; 0 for none."""
        return max((machine.whole for machine in self._machines.values() if machine.whole is not None), default=0)

    @property
    def tensor_parallel(self) -> int:
        """The layout of most machines; on a tie the wanted one, so that the failure of a few looks like no refusal."""
        counts = Counter(one.tensor_parallel for one in self._machines.values() if one.tensor_parallel != RESTING)
        wanted = self.layouts.wanted
        return min(counts, key=lambda size: (-counts[size], size != wanted, size), default=wanted)

    @property
    def unable(self) -> bool:
        """Whether no machine of the job can start an engine: see `Layouts.unable`."""
        return self.layouts.unable(self.kept)

    def present(self) -> dict[str, Replica]:
        """Replicas by name, whatever they hold."""
        return {replica.name: replica for machine in self._machines.values() for replica in machine.replicas}

    def replicas(self) -> dict[str, Replica]:
        """Replicas by name that hold the fleet's version."""
        return {replica.name: replica for machine in self.loaded() for replica in machine.replicas}

    def loaded(self) -> list[RolloutMachine]:
        """The machines whose replicas hold the fleet's version, by name."""
        if self.version is None:
            return []
        return [self._machines[name] for name in self.machines if self._machines[name].loaded == self.version]

    def set_model_files(self, files: dict[str, bytes]) -> None:
        """What replicas need besides weights; machines are made once it is known."""
        if not self._model_files.done():
            self._model_files.set_result(files)

    # --- membership ---

    def follow(self, members: Iterable[Member], epoch: int, order: Sequence[str]) -> None:
        """Keep exactly these machines: newcomers are made, another incarnation replaces the one before, the rest is
        let go."""
        wanted = {member.machine: member for member in members}
        self._broadcast.follow(epoch, order)
        for name, (member, _) in list(self._keepers.items()):
            if name not in wanted or wanted[name].incarnation != member.incarnation:
                self._stop_keeping(name, "Replaced" if name in wanted else "Removed")
                self._former.setdefault(name, {})[member.incarnation] = member
        for name, member in wanted.items():
            if name not in self._keepers:
                task = asyncio.create_task(self._keep(member), name=f"keep-{name}")
                self._keepers[name] = (member, task)

    def _stop_keeping(self, name: str, reason: str) -> None:
        _, task = self._keepers.pop(name)
        if task.done():
            # Nobody would hear of its end from now on.
            task.result()
        task.cancel()
        machine = self._machines.pop(name, None)
        self.layouts.leave(name)
        if machine is not None:
            machine.gone.set()
        self._pulse.absolve(name)
        self._absences.over(name)
        self._tell_generating()
        log.info("machine %s: %s", name, reason)
        self.on_change()

    async def remove(self, names: Collection[str]) -> tuple[str, ...]:
        """Let these machines go: their actors are ended. The names of those that held something."""
        leaving = [self._keepers[name][0] for name in names if name in self._keepers]
        for member in leaving:
            self._stop_keeping(member.machine, "Drained")
        await asyncio.gather(*(self._binding.release(member) for member in leaving))
        return tuple(member.machine for member in leaving)

    async def aclose(self) -> None:
        """Stop keeping; the actors live on for the next coordinator."""
        await self._asides.close()
        tasks = [task for _, task in self._keepers.values()]
        self._keepers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def lose(self, name: str, reason: str, detail: object = "") -> None:
        """A seated machine failed a call. Its keeper starts over, the chain closes over it, and the operator hears of
        it, all at once."""
        machine = self._machines.pop(name, None)
        if machine is None:
            return
        log.warning("machine %s lost: %s %s", name, reason, detail)
        now, incarnation = asyncio.get_running_loop().time(), machine.member.incarnation
        if _own_failure(reason, detail) and self._relapses.record(name, incarnation, now):
            log.warning("machine %s keeps failing: it was restarted in place less than a while ago", name)
            reason = KEEPS_FAILING
        self.layouts.forget(name)
        self._pulse.suspect(machine.member, reason, machine.address)
        machine.lost_by = reason
        machine.gone.set()
        self._tell_generating()
        self._pulse.start(self._broadcast.mend())
        self.on_change()

    def lose_replica(self, replica: Replica, reason: str, detail: object = "") -> None:
        """As `lose`, by a replica of the machine. One that was lost before harms no successor of its name."""
        machine = self._seat_of(replica)
        if machine is not None:
            self.lose(machine.name, reason, detail)

    async def while_here(self, replica: Replica, call: Coroutine[Any, Any, None]) -> None:
        """A call of a replica, for as long as its machine is here. Raises `PeerGone` as soon as that leaves."""
        machine = self._seat_of(replica)
        await (call if machine is None else machine.while_here(call))

    def _seat_of(self, replica: Replica) -> RolloutMachine | None:
        """The machine that has this very replica; another one may bear its name by now."""
        machine = self._machines.get(machine_of(replica.name))
        return machine if machine is not None and any(one is replica for one in machine.replicas) else None

    def generates(self, replica: Replica) -> None:
        """A replica has made tokens."""
        machine = self._seat_of(replica)
        if machine is not None and not machine.generating:
            machine.generating = True
            self._tell_generating()

    def _tell_generating(self) -> None:
        names = tuple(name for name in self.machines if self._machines[name].generating)
        self._reporter.update(generating=names)

    async def _keep(self, member: Member) -> None:
        """Make, seat, and make again, until cancelled."""
        failures = 0
        while True:
            files = await asyncio.shield(self._model_files)
            try:
                await self._end_former(member)
                found = await self._binding.rollout_machine(self._term, member, files)
                layout = await self.layouts.settle(found)
                status = await found.relay.status(self._term)
            except StaleTerm:
                raise
            except PeerError as error:
                failures += 1
                log.info("machine %s.%d not there (try %d): %s", member.machine, member.incarnation, failures, error)
                self._absences.note(member.machine, failures, error)
                if failures == self._settings.join_tries:
                    self._pulse.suspect(member, "NotJoined")
                if self.unable:
                    self.on_change()
                await self._binding.release(member)
            else:
                failures = 0
                self._former.pop(member.machine, None)
                self._absences.over(member.machine)
                self._broadcast.seen((status.epoch, status.revision))
                machine = RolloutMachine(found, *layout, status.host, status.port, status.whole)
                self._machines[member.machine] = machine
                self.aside(machine.end_loan(self._term))
                self._arrival.set()
                await machine.gone.wait()
                if machine.lost_by == SILENT and await self._pulse.comes_back(machine):
                    continue
                failures = 1
                await self._binding.release(member)
            await asyncio.sleep(self._settings.back_off.delay(failures) or self._settings.back_off.maximum)

    async def _end_former(self, member: Member) -> None:
        """The actors of its former incarnations hold what its own need, and outlive them where no pod goes with them.
        One that was given up on may have come into being late, so they are ended before every try."""
        for former in tuple(self._former.get(member.machine, {}).values()):
            if former.incarnation != member.incarnation:
                await self._binding.release(former)

    # --- background ---

    async def watch(self) -> None:
        """Beat every seated relay until cancelled. Raises what a keeper died of, or what went on aside."""
        await self._pulse.watch(self._check_tasks)

    def _check_tasks(self) -> None:
        for _, keeper in self._keepers.values():
            if keeper.done():
                keeper.result()
        self._asides.check()

    def lose_this(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """As `lose`, if it is this one that sits there."""
        if self._broadcast.is_seated(machine):
            self.lose(machine.name, reason, detail)

    async def receive(self) -> None:
        """Feed newcomers with the fleet's version until cancelled. Errors of the trainer are the main line's to see."""
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            version = self.version
            if version is not None and self._ship is not None:
                try:
                    await self._feed(version, self._ship)
                except StaleTerm:
                    raise
                except TrainerLost as error:
                    log.warning("nobody holds version %d any more: %s", version, error)
                    # Where it was forgotten meanwhile nobody waits for it.
                    self.starved = self.version == version
                    self.on_change()
                except PeerError as error:
                    log.warning("newcomers not fed yet: %s", error)
                    await asyncio.sleep(self._settings.heartbeat)
                    self._arrival.set()

    # --- layouts ---

    async def lay_out(self, tensor_parallel: int, asked: Collection[int]) -> None:
        """Replicas run on so many accelerators each from now on: machines in another layout are brought to it, those
        that refuse keep theirs, those that fail are lost. Nobody generates meanwhile; weights have to be brought
        again. `asked`: see `Layouts.want`. Where nothing changes, a version on its way is not waited for."""
        due = any(self.layouts.due(one.name, one.tensor_parallel) for one in self._machines.values())
        if self.layouts.is_wanted(tensor_parallel, asked) and not due:
            return
        async with self._bringing:
            self.layouts.want(tensor_parallel, asked)
            await asyncio.gather(*(one.unless_gone(self._settle(one)) for one in list(self._machines.values())))
        self.on_change()

    async def _settle(self, machine: RolloutMachine) -> None:
        if not self.layouts.due(machine.name, machine.tensor_parallel):
            return
        machine.loaded = None
        # Nobody is given anything meanwhile, and what they held is lost.
        machine.replicas = ()
        self.on_change()
        try:
            machine.tensor_parallel, machine.replicas = await self.layouts.settle(
                machine.peers, machine.tensor_parallel
            )
        except StaleTerm:
            raise
        except PeerError as error:
            self.lose_this(machine, loss_reason(error), error)

    # --- loans ---

    def lend(self, machine: RolloutMachine) -> None:
        """Its worker has it until it is taken back."""
        if machine.lend_accelerators():
            self.on_change()

    def take_back(self, machine: RolloutMachine, again: bool) -> None:
        """It is lent no more. If it is to generate `again` with the fleet's version, it is fed as a newcomer is, where
        its seats rest; else it waits for the next one."""
        machine.lent = False
        if again and machine.loaded is None:
            self._arrival.set()

    # --- weights ---

    @property
    def broadcast_seconds(self) -> float | None:
        """What the last version took that nobody had, from the trainer's memory to every relay; None before there was
        one."""
        return self._broadcast.seconds

    async def bring(self, version: int, ship: PushWeights, anew: bool = False) -> None:
        """Every machine that was seated in time holds `version` in its relay and its replicas when this returns;
        machines that cannot are lost on the way, and one that sits down in the middle is fed afterwards (`receive`).
        `anew`: it is shipped even if the master holds it. Raises what `ship` raises. Gives up when the weights are
        forgotten meanwhile."""
        async with self._bringing:
            if self.version is not None and version < self.version:
                return
            self.version, self._ship, self._feed = version, ship, self.bring
            chained = await self._broadcast.deliver(version, ship, anew, lambda: self.version == version)
            if self.version != version:
                return
            await asyncio.gather(*(machine.unless_gone(self._load(machine, version)) for machine in chained))
            self._broadcast.report(self.version)
        self.on_change()

    async def deliver(self, version: int, ship: PushWeights, anew: bool = False) -> None:
        """As `bring`, but for the replicas: each takes the version when it has nothing to do (Laminar, section 3). One
        under way that is older gives way to it."""
        if self.version is not None and version < self.version:
            return
        self.version, self._ship, self._feed = version, ship, self.deliver
        async with self._bringing:
            delivered = await self._broadcast.deliver(version, ship, anew, lambda: self.version == version)
            if self.version != version:
                return
            for machine in delivered:
                self._pulse.works(machine.name)
            self._broadcast.report(self.version)
        self.on_change()

    async def _load(self, machine: RolloutMachine, version: int) -> None:
        if machine.lent:
            return
        # One that sat down while the layout changed is in the former one.
        await self._settle(machine)
        if machine.loaded == version or not self._broadcast.is_seated(machine):
            return
        try:
            loaded = set(await asyncio.gather(*(one.load(self._term, version) for one in machine.replicas)))
            if loaded - {version}:
                raise WrongVersion(f"version {version} is wanted, loaded are {sorted(loaded)}")
        except StaleTerm:
            raise
        except PeerError as error:
            self.lose_this(machine, "WeightsNotLoaded", error)
        else:
            machine.loaded = version
            self._pulse.works(machine.name)

    def forget_weights(self) -> None:
        """The trainer may not hold the version in hand any more: nobody is fed and nothing launched until the next
        `bring`."""
        self.version, self.starved = None, False


def _own_failure(reason: str, detail: object) -> bool:
    """Whether a loss says that what a machine runs on may be no good. Who is silent may only be out of reach; who says
    no, as to weights that do not fit, is there to say it; and what the trainer does not ship nobody can take."""
    return reason not in (SILENT, NOT_SHIPPED) and not isinstance(detail, Refused)
