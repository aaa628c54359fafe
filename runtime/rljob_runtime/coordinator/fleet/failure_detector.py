"""Failure detector: sends heartbeats to every machine.

A machine that misses them leaves the relay chain immediately. Its neighbours are then asked whether they reach it
(`scheduling/fault_detection/suspicion.py`), because a broken network looks like many dead machines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from rljob_api.constants import KEEPS_FAILING
from rljob_api.status import Member, Suspect
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.fleet.view import FleetView
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import PeerError, PeerTimeout, RelayMember, StaleTerm
from rljob_runtime.scheduling.fault_detection.machine_loss import SILENT
from rljob_runtime.scheduling.fault_detection.suspicion import Suspicion, neighbours

log = logging.getLogger(__name__)


class FailureDetector:
    """Heartbeats and suspected machines of one fleet.

    `chain` returns the current order of the relay chain. Suspects are reported whenever they change.
    """

    def __init__(
        self,
        fleet: FleetView,
        chain: Callable[[], tuple[str, ...]],
        term: int,
        settings: Settings,
        reporter: Reporter,
    ) -> None:
        self._fleet = fleet
        self._chain = chain
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._suspected: dict[str, _SuspectedMachine] = {}
        self._reported: tuple[Suspect, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- heartbeats ---

    async def run(self, on_heartbeat: Callable[[], None]) -> None:
        """Send heartbeats to every member until cancelled, and call `on_heartbeat` each time.

        Raises what `on_heartbeat` raises, and `StaleTerm` if a later coordinator has the term.
        """
        try:
            while True:
                await asyncio.sleep(self._settings.heartbeat)
                on_heartbeat()
                self._reap()
                for machine in list(self._fleet.joined.values()):
                    self.start(self._send_heartbeat(machine))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reap(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            if not task.cancelled():
                task.result()

    async def _send_heartbeat(self, machine: RolloutMachine) -> None:
        """Read the status of its relay. Heartbeats overlap, so that one lost message marks no machine as lost."""
        clock = asyncio.get_running_loop().time
        patience = machine.heartbeats.timeout(self._settings.heartbeat)
        sent = clock()
        check = asyncio.ensure_future(self.check(machine))
        try:
            await asyncio.wait({check}, timeout=patience)
            if not check.done() or not check.result():
                self._record_miss(machine, patience, clock() - sent - patience)
            if await check:
                self._record_answer(machine, clock() - sent)
        finally:
            check.cancel()

    def _record_miss(self, machine: RolloutMachine, patience: float, own_delay: float) -> None:
        machine.heartbeats = machine.heartbeats.record_miss(self._settings.heartbeat, own_delay)
        if machine.heartbeats.silent:
            detail = f"{machine.heartbeats.missed} heartbeats without an answer, the last one within {patience:.2f} s"
            self._fleet.mark_machine_lost(machine, SILENT, detail)

    def _record_answer(self, machine: RolloutMachine, seconds: float) -> None:
        machine.heartbeats = machine.heartbeats.record_answer(seconds)
        if seconds > self._settings.heartbeat:
            log.info("%s answered a heartbeat after %.1f s: its timeout grows", machine.name, seconds)

    async def check(self, machine: RolloutMachine) -> bool:
        """Read the status of its relay; return False if no answer comes.

        A machine whose process has ended is marked lost.
        """
        try:
            status = await machine.relay.status(self._term)
        except PeerTimeout:
            return False
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, "ProcessExited", error)
            return False
        machine.record_status(status)
        return True

    async def becomes_reachable(self, machine: RolloutMachine) -> bool:
        """Return whether a silent machine answers within the rebuild timeout. If so, its suspicion is cleared."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while clock() - since < self._settings.rebuild_timeout:
            try:
                async with asyncio.timeout(self._settings.heartbeat):
                    await machine.relay.status(self._term)
            except (TimeoutError, PeerTimeout):
                await asyncio.sleep(self._settings.heartbeat)
            except StaleTerm:
                raise
            except PeerError:
                return False
            else:
                self.record_success(machine.name)
                return True
        return False

    # --- witnesses ---

    def suspect(self, member: Member, reason: str, address: RelayMember | None = None) -> None:
        """Report a machine as suspected dead.

        If the `address` of its relay is known, its neighbours probe it until the suspicion is cleared: a machine may
        lose its power later than its processes end.
        """
        suspected = self._suspected.get(member.machine)
        if suspected is not None and suspected.member.incarnation == member.incarnation:
            if suspected.suspicion.reason != KEEPS_FAILING:
                suspected.suspicion = replace(suspected.suspicion, reason=reason)
        else:
            self.clear_suspicion(member.machine)
            suspected = self._suspected[member.machine] = _SuspectedMachine(member, Suspicion(reason))
        if address is not None:
            suspected.address, suspected.chain = address, self._chain()
            if suspected.inquiry is None:
                suspected.inquiry = self.start(self._inquire(suspected))
        self._report()

    def record_success(self, name: str) -> None:
        """Clear the suspicion of a machine that works. One that keeps failing stays suspected, and is replaced."""
        suspected = self._suspected.get(name)
        if suspected is not None and suspected.suspicion.reason != KEEPS_FAILING:
            self.clear_suspicion(name)

    def clear_suspicion(self, name: str) -> None:
        """Stop suspecting a machine, e.g. because it was removed or replaced."""
        suspected = self._suspected.pop(name, None)
        if suspected is not None:
            if suspected.inquiry is not None:
                suspected.inquiry.cancel()
            self._report()

    async def _inquire(self, suspected: _SuspectedMachine) -> None:
        while True:
            names = neighbours(suspected.chain, suspected.member.machine, self._fleet.joined)
            await asyncio.gather(*(self._probe(self._fleet.joined[name], suspected) for name in names))
            await asyncio.sleep(self._settings.heartbeat)

    async def _probe(self, neighbour: RolloutMachine, suspected: _SuspectedMachine) -> None:
        assert suspected.address is not None
        try:
            reached = await neighbour.run_unless_left(neighbour.relay.probe(self._term, suspected.address))
        except StaleTerm:
            raise
        except PeerError as error:
            log.info("%s could not probe %s: %s", neighbour.name, suspected.member.machine, error)
            return
        if reached is not None:
            suspected.suspicion = suspected.suspicion.with_report(neighbour.name, reached)
            self._report()

    def _report(self) -> None:
        """Report the suspects immediately if they have changed."""
        suspects = tuple(one.report(self._fleet.joined) for one in self._suspected.values())
        if suspects != self._reported:
            self._reported = suspects
            self._reporter.event(suspects=suspects)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task of `run`, which raises its error and cancels it at its own end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task


@dataclass
class _SuspectedMachine:
    """A suspected machine. `chain` is the chain before its repair, which names its neighbours."""

    member: Member
    suspicion: Suspicion
    address: RelayMember | None = None
    chain: tuple[str, ...] = ()
    inquiry: asyncio.Task[None] | None = None

    def report(self, joined: Collection[str]) -> Suspect:
        """Return the suspect as the status shows it."""
        return Suspect(
            machine=self.member.machine,
            incarnation=self.member.incarnation,
            reason=self.suspicion.reason,
            witnesses=self.suspicion.witnesses(joined),
        )
