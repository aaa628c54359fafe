"""Beats to every machine, and what becomes of a machine that does not answer: it leaves the chain at once, and its
neighbours are asked whether it answers them (`scheduling/fault_detection/suspicion.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rljob_api.constants import KEEPS_FAILING
from rljob_api.status import Member, Suspect
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import PeerError, PeerTimeout, RelayMember, StaleTerm
from rljob_runtime.scheduling.fault_detection.suspicion import Suspicion, neighbours

log = logging.getLogger(__name__)

SILENT = "HeartbeatLost"
"""Why a machine is lost that does not answer. Its processes may live."""


class FleetView(Protocol):
    """Whose machines they are: `fleet.Fleet`."""

    @property
    def seated(self) -> Mapping[str, RolloutMachine]:
        """The machines that are here now, by name."""
        ...

    def lose_this(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """It does not answer, or its relay's process ended."""
        ...


class FailureDetector:
    """`chain` says who feeds whom, as the relays were told last. Suspects are reported as they come and go."""

    def __init__(
        self,
        seats: FleetView,
        chain: Callable[[], tuple[str, ...]],
        term: int,
        settings: Settings,
        reporter: Reporter,
    ) -> None:
        self._seats = seats
        self._chain = chain
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._cases: dict[str, _SuspectedMachine] = {}
        self._reported: tuple[Suspect, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- beats ---

    async def watch(self, each: Callable[[], None]) -> None:
        """Beat every seated machine until cancelled, and call `each` time. Raises what that raises, and `StaleTerm` in
        a coordinator that is out of office."""
        try:
            while True:
                await asyncio.sleep(self._settings.heartbeat)
                each()
                self._reap()
                for machine in list(self._seats.seated.values()):
                    self.start(self._beat(machine))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reap(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            if not task.cancelled():
                task.result()

    async def _beat(self, machine: RolloutMachine) -> None:
        """Ask its relay how it is, and do not wait for the answer of the beat before: one lost message is no sign."""
        clock = asyncio.get_running_loop().time
        patience = machine.beats.timeout(self._settings.heartbeat)
        sent = clock()
        look = asyncio.ensure_future(self.look(machine))
        try:
            await asyncio.wait({look}, timeout=patience)
            if not look.done() or not look.result():
                self._miss(machine, patience, clock() - sent - patience)
            if await look:
                self._answered(machine, clock() - sent)
        finally:
            look.cancel()

    def _miss(self, machine: RolloutMachine, patience: float, own_delay: float) -> None:
        machine.beats = machine.beats.record_miss(self._settings.heartbeat, own_delay)
        if machine.beats.silent:
            detail = f"{machine.beats.missed} beats without an answer, the last one within {patience:.2f} s"
            self._seats.lose_this(machine, SILENT, detail)

    def _answered(self, machine: RolloutMachine, seconds: float) -> None:
        machine.beats = machine.beats.record_answer(seconds)
        if seconds > self._settings.heartbeat:
            log.info("%s answered a beat after %.1f s: the next ones are given longer", machine.name, seconds)

    async def look(self, machine: RolloutMachine) -> bool:
        """Ask its relay how far it is; False where no answer comes. It is lost where the process has ended."""
        try:
            status = await machine.relay.status(self._term)
        except PeerTimeout:
            return False
        except StaleTerm:
            raise
        except PeerError as error:
            self._seats.lose_this(machine, "ProcessExited", error)
            return False
        machine.note(status)
        return True

    async def comes_back(self, machine: RolloutMachine) -> bool:
        """Whether a machine that was silent answers within the rebuild timeout: then it is as it was, and no suspect
        any more."""
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
                self.works(machine.name)
                return True
        return False

    # --- witnesses ---

    def suspect(self, member: Member, reason: str, address: RelayMember | None = None) -> None:
        """The coordinator believes that it is dead. Where the `address` of its relay is known, neighbours are asked
        about it until it is absolved: a machine may lose its power after its processes."""
        case = self._cases.get(member.machine)
        if case is not None and case.member.incarnation == member.incarnation:
            if case.suspicion.reason != KEEPS_FAILING:
                case.suspicion = replace(case.suspicion, reason=reason)
        else:
            self.absolve(member.machine)
            case = self._cases[member.machine] = _SuspectedMachine(member, Suspicion(reason))
        if address is not None:
            case.address, case.chain = address, self._chain()
            if case.inquiry is None:
                case.inquiry = self.start(self._inquire(case))
        self._tell()

    def works(self, name: str) -> None:
        """It does what it is there for. One that keeps failing is to be replaced all the same."""
        case = self._cases.get(name)
        if case is not None and case.suspicion.reason != KEEPS_FAILING:
            self.absolve(name)

    def absolve(self, name: str) -> None:
        """It is not here any more, or another one has its name."""
        case = self._cases.pop(name, None)
        if case is not None:
            if case.inquiry is not None:
                case.inquiry.cancel()
            self._tell()

    async def _inquire(self, case: _SuspectedMachine) -> None:
        while True:
            asked = neighbours(case.chain, case.member.machine, self._seats.seated)
            await asyncio.gather(*(self._ask(self._seats.seated[name], case) for name in asked))
            await asyncio.sleep(self._settings.heartbeat)

    async def _ask(self, neighbour: RolloutMachine, case: _SuspectedMachine) -> None:
        assert case.address is not None
        try:
            reached = await neighbour.unless_gone(neighbour.relay.probe(self._term, case.address))
        except StaleTerm:
            raise
        except PeerError as error:
            log.info("%s cannot say whether %s answers it: %s", neighbour.name, case.member.machine, error)
            return
        if reached is not None:
            case.suspicion = case.suspicion.with_report(neighbour.name, reached)
            self._tell()

    def _tell(self) -> None:
        """At once, where it is news."""
        suspects = tuple(case.told(self._seats.seated) for case in self._cases.values())
        if suspects != self._reported:
            self._reported = suspects
            self._reporter.event(suspects=suspects)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have `watch` see to it: it raises what this raises, and ends it at its own end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task


@dataclass
class _SuspectedMachine:
    """`chain`: as it was before the gap was closed."""

    member: Member
    suspicion: Suspicion
    address: RelayMember | None = None
    chain: tuple[str, ...] = ()
    inquiry: asyncio.Task[None] | None = None

    def told(self, present: Collection[str]) -> Suspect:
        """As it is reported."""
        return Suspect(
            machine=self.member.machine,
            incarnation=self.member.incarnation,
            reason=self.suspicion.reason,
            witnesses=self.suspicion.witnesses(present),
        )
