"""Fleet: the rollout machines that are members, and their loss.

Each machine that the operator names has one task. It finds or makes the machine's actors, joins it to the fleet, and
starts again with a back-off after a loss. A machine is marked lost quickly, and the mark is reversible: a silent
machine that answers again continues as it was. `weights` brings members to a weight version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rljob_api.constants import KEEPS_FAILING
from rljob_api.status import Member
from rljob_runtime.coordinator.core.async_utils import BackgroundTasks
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.absent_machines import AbsentMachines
from rljob_runtime.coordinator.fleet.broadcast import Broadcast
from rljob_runtime.coordinator.fleet.failure_detector import FailureDetector
from rljob_runtime.coordinator.fleet.layouts import Layouts
from rljob_runtime.coordinator.fleet.machine import SLEEPING, RolloutMachine, machine_of
from rljob_runtime.coordinator.fleet.weights import FleetWeights
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.protocols import Backend, PeerError, Refused, Replica, StaleTerm
from rljob_runtime.scheduling.adaptive_tp.kv_drops import KvDrops, KvDropTotals
from rljob_runtime.scheduling.fault_detection.machine_loss import SILENT, suggests_broken_machine
from rljob_runtime.scheduling.fault_detection.stall_detection import RestartHistory
from rljob_runtime.scheduling.layouts.fleet_layout import layout_of_most
from rljob_runtime.timeline.idle import JOINED, LEFT, LOST, machine_row

log = logging.getLogger(__name__)

T = TypeVar("T")


class Fleet:
    """The rollout machines of a job. `on_change` is called when members, layouts or loaded weights change."""

    def __init__(self, backend: Backend, term: int, settings: Settings, reporter: Reporter) -> None:
        self._backend = backend
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._joined: dict[str, RolloutMachine] = {}
        self._machine_tasks: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._former: dict[str, dict[int, Member]] = {}
        """By machine: earlier incarnations whose actors may still run."""
        self._absent = AbsentMachines(settings.join_tries, reporter)
        self._kv_drops = KvDropTotals()
        self.switch_wait_seconds = 0.0
        """Time for which generation stages did nothing else because a machine switched its layout."""
        self._broadcast = Broadcast(self, term, settings, reporter)
        self._restarts = RestartHistory(settings.again_within)
        self._detector = FailureDetector(self, self._broadcast.names, term, settings, reporter)
        self.check = self._detector.check
        self._background = BackgroundTasks()
        self.run_in_background = self._background.start
        self.layouts = Layouts(term, settings.tensor_parallel, reporter, settings.join_patience)
        self.weights = FleetWeights(self, self._broadcast, self.layouts, self._detector, term, settings)
        self.on_change: Callable[[], None] = lambda: None
        self._model_files: asyncio.Future[dict[str, bytes]] = asyncio.get_running_loop().create_future()

    # --- queries ---

    @property
    def joined(self) -> Mapping[str, RolloutMachine]:
        """The machines that have joined, by name."""
        return self._joined

    @property
    def timeline(self) -> Timeline:
        """Where intervals are recorded."""
        return self._reporter.timeline

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of the machines that have joined."""
        return tuple(sorted(self._joined))

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the machines that have joined or are joining."""
        return tuple(sorted(self._machine_tasks))

    @property
    def tensor_parallel(self) -> int:
        """The layout of most machines: see `layout_of_most`."""
        sizes = (one.tensor_parallel for one in self._joined.values() if one.tensor_parallel != SLEEPING)
        return layout_of_most(sizes, self.layouts.target)

    def layout_of(self, replica: str) -> int:
        """Return the layout of a replica's machine; `SLEEPING` if it is no member."""
        machine = self._joined.get(machine_of(replica))
        return machine.tensor_parallel if machine is not None else SLEEPING

    @property
    def unable_to_start(self) -> bool:
        """Whether no machine of the job can start an engine: see `Layouts.unable_to_start`."""
        return self.layouts.unable_to_start(self.members)

    @property
    def tensor_parallel_sizes(self) -> Sequence[int]:
        """The sizes that the spec allows."""
        return self._settings.tensor_parallel_sizes

    def layout_stats(self) -> LayoutStats:
        """Return the totals of layout switches, their KV files and visits to layouts."""
        kept = sum(machine.kv_drops.kept_bytes for machine in self._joined.values())
        return LayoutStats(replace(self._kv_drops), kept, replace(self.weights.visits), self.switch_wait_seconds)

    def available(self) -> dict[str, Replica]:
        """Return the replicas by name, whatever weights they hold."""
        return {replica.name: replica for machine in self._joined.values() for replica in machine.replicas}

    def is_member(self, machine: RolloutMachine) -> bool:
        """Return whether this very machine is a member. A later one of the same name holds none of its weights."""
        return self._joined.get(machine.name) is machine

    def set_model_files(self, files: dict[str, bytes]) -> None:
        """Set the files that replicas need besides weights. No machine joins before."""
        if not self._model_files.done():
            self._model_files.set_result(files)

    def notify(self) -> None:
        """Call `on_change`."""
        self.on_change()

    # --- membership ---

    def set_members(self, members: Iterable[Member], epoch: int, order: Sequence[str]) -> None:
        """Keep exactly these machines: new ones join, later incarnations replace earlier ones, the rest leaves."""
        wanted = {member.machine: member for member in members}
        self._broadcast.set_order(epoch, order)
        for name, (member, _) in list(self._machine_tasks.items()):
            if name not in wanted or wanted[name].incarnation != member.incarnation:
                self._remove(name, "Replaced" if name in wanted else "Removed")
                self._former.setdefault(name, {})[member.incarnation] = member
        for name, member in wanted.items():
            if name not in self._machine_tasks:
                task = asyncio.create_task(self._run_machine(member), name=f"machine-{name}")
                self._machine_tasks[name] = (member, task)

    def _remove(self, name: str, reason: str) -> None:
        _, task = self._machine_tasks.pop(name)
        if task.done():
            # `_check_tasks` does not see its error any more.
            task.result()
        task.cancel()
        machine = self._joined.pop(name, None)
        self.layouts.remove(name)
        if machine is not None:
            machine.left.set()
            self.timeline.event(LEFT, f"{name}: {reason.lower()}", machine_row(name))
        self._detector.clear_suspicion(name)
        self._absent.clear(name)
        self._report_generating()
        log.info("machine %s: %s", name, reason)
        self.on_change()

    async def remove(self, names: Collection[str]) -> tuple[str, ...]:
        """Remove these machines and end their actors. Return the names of those that were members."""
        leaving = [self._machine_tasks[name][0] for name in names if name in self._machine_tasks]
        for member in leaving:
            self._remove(member.machine, "Drained")
        await asyncio.gather(*(self._backend.release(member) for member in leaving))
        return tuple(member.machine for member in leaving)

    async def aclose(self) -> None:
        """End the tasks. The actors live on for the next coordinator."""
        await self._background.close()
        tasks = [task for _, task in self._machine_tasks.values()]
        self._machine_tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_machine(self, member: Member) -> None:
        """Join the machine, and join it again after each loss, until cancelled."""
        failures = 0
        while True:
            files = await asyncio.shield(self._model_files)
            try:
                machine = await self._find(member, files)
            except StaleTerm:
                raise
            except PeerError as error:
                failures += 1
                await self._record_join_failure(member, failures, error)
            else:
                failures = 0
                self._join(machine)
                await machine.left.wait()
                if machine.loss_reason == SILENT and await self._detector.becomes_reachable(machine):
                    # The same processes: they keep their layout, and what they refused.
                    continue
                failures = 1
                self.layouts.processes_ended(member.machine)
                await self._backend.release(member)
            await asyncio.sleep(self._settings.back_off.delay(failures) or self._settings.back_off.maximum)

    async def _find(self, member: Member, files: dict[str, bytes]) -> RolloutMachine:
        """Find or make the actors of a machine and switch them to the target layout."""
        await self._end_former(member)
        peers = await self._backend.rollout_machine(self._term, member, files)
        layout = await self.layouts.apply(peers)
        status = await peers.relay.status(self._term)
        self._broadcast.record_revision((status.epoch, status.revision))
        kv_drops = KvDrops(self._kv_drops)
        return RolloutMachine(peers, *layout, status.host, status.port, status.whole, kv_drops=kv_drops)

    def _join(self, machine: RolloutMachine) -> None:
        name = machine.name
        self._former.pop(name, None)
        self._absent.clear(name)
        self._joined[name] = machine
        self.timeline.event(JOINED, f"{name}, incarnation {machine.member.incarnation}", machine_row(name))
        self.run_in_background(machine.release_worker(self._term))
        self.weights.request()

    async def _record_join_failure(self, member: Member, failures: int, error: PeerError) -> None:
        log.info("machine %s.%d has not joined (try %d): %s", member.machine, member.incarnation, failures, error)
        self._absent.record_failure(member.machine, failures, error)
        if failures == self._settings.join_tries:
            self._detector.suspect(member, "NotJoined")
        if self.unable_to_start:
            self.on_change()
        await self._backend.release(member)

    async def _end_former(self, member: Member) -> None:
        """End the actors of earlier incarnations: they hold what this one needs.

        They outlive a machine whose pod was not deleted. One that never answered may still come up late, so this runs
        before every try.
        """
        for former in tuple(self._former.get(member.machine, {}).values()):
            if former.incarnation != member.incarnation:
                await self._backend.release(former)

    # --- loss ---

    def mark_lost(self, name: str, reason: str, detail: object = "") -> None:
        """Mark a machine as lost because a call failed.

        Its task starts again, the chain is repaired, and the operator is notified, all immediately.
        """
        machine = self._joined.pop(name, None)
        if machine is None:
            return
        log.warning("machine %s lost: %s %s", name, reason, detail)
        self.timeline.event(LOST, f"{name}: {reason} {detail}".rstrip(), machine_row(name))
        now, incarnation = asyncio.get_running_loop().time(), machine.member.incarnation
        broken = suggests_broken_machine(reason, isinstance(detail, Refused))
        if broken and self._restarts.record(name, incarnation, now):
            log.warning("machine %s keeps failing: it was restarted in place within the restart window", name)
            reason = KEEPS_FAILING
        self._detector.suspect(machine.member, reason, machine.address)
        machine.loss_reason = reason
        machine.left.set()
        self._report_generating()
        self._detector.start(self._broadcast.repair_chain())
        self.on_change()

    def mark_machine_lost(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """Mark this machine as lost, unless it has already left."""
        if self.is_member(machine):
            self.mark_lost(machine.name, reason, detail)

    def mark_replica_lost(self, replica: Replica, reason: str, detail: object = "") -> None:
        """Mark the machine of this replica as lost, unless it has already left."""
        machine = self._machine_with(replica)
        if machine is not None:
            self.mark_lost(machine.name, reason, detail)

    async def run_while_member(self, replica: Replica, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call to a replica. Raises `PeerGone` as soon as its machine leaves."""
        machine = self._machine_with(replica)
        return await (call if machine is None else machine.run_while_member(call))

    def _machine_with(self, replica: Replica) -> RolloutMachine | None:
        """Return the member with this very replica; a later member may have the same name."""
        machine = self._joined.get(machine_of(replica.name))
        return machine if machine is not None and any(one is replica for one in machine.replicas) else None

    # --- reports and loans ---

    def record_generating(self, replica: Replica) -> None:
        """Record that a replica has generated tokens."""
        machine = self._machine_with(replica)
        if machine is not None and not machine.generating:
            machine.generating = True
            self._report_generating()

    def _report_generating(self) -> None:
        names = tuple(name for name in self.machines if self._joined[name].generating)
        self._reporter.update(generating=names)

    def start_loan(self, machine: RolloutMachine) -> None:
        """Loan a machine to its gradient worker."""
        self.timeline.busy(f"{machine.name}/worker", "loan", held=True)
        if machine.loan_accelerators():
            self.on_change()

    def end_loan(self, machine: RolloutMachine, reload: bool) -> None:
        """End the loan of a machine. With `reload` it loads the current version now, else it waits for the next."""
        machine.loaned = False
        self.timeline.busy(f"{machine.name}/worker", "loan", held=False)
        if reload and machine.loaded_version is None:
            self.weights.request()

    # --- background ---

    async def run(self) -> None:
        """Send heartbeats until cancelled. Raises the error of a machine's task or of a background task."""
        await self._detector.run(self._check_tasks)

    def _check_tasks(self) -> None:
        for _, task in self._machine_tasks.values():
            if task.done():
                task.result()
        self._background.check()
