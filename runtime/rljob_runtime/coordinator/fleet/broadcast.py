"""The chain over the relays of the seated machines, and the way of a version down it (Laminar, section 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rljob_api.status import RelayTopology
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, loss_reason
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import Chain, PeerError, StaleTerm
from rljob_runtime.scheduling.fault_detection.relay_chain import ChainOrder, repair
from rljob_runtime.scheduling.fault_detection.stall_detection import StalledLinks

PushWeights = Callable[[int, Chain], Awaitable[None]]
"""Have the trainer send a version to the master of a chain."""

NOT_SHIPPED = "WeightsNotShipped"
"""Why a master is lost to which the trainer brings nothing, as to the one before it."""
TRAINER = ""
"""Who feeds the master, among the names of machines."""
LOOK_SECONDS = 0.05
"""How often relays that still lack a version are asked, at least."""


class FleetView(Protocol):
    """Whose machines they are: `fleet.Fleet`."""

    @property
    def seated(self) -> Mapping[str, RolloutMachine]:
        """The machines that are here now, by name."""
        ...

    def lose_this(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """A call to it failed, or it stands still."""
        ...

    async def look(self, machine: RolloutMachine) -> bool:
        """Ask its relay how far it is; False where no answer comes."""
        ...


class Broadcast:
    """One delivery at a time."""

    def __init__(self, seats: FleetView, term: int, settings: Settings, reporter: Reporter) -> None:
        self._seats = seats
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._order: tuple[int, tuple[str, ...]] = (0, ())
        self._chain: ChainOrder | None = None
        self._newest_seen = (0, -1)
        self._changing = asyncio.Lock()
        self._stand_stills = StalledLinks(settings.again_within)
        self.seconds: float | None = None
        """What the last version took that nobody had, from the trainer's memory to every relay."""

    @property
    def chain(self) -> ChainOrder | None:
        """As it was given last."""
        return self._chain

    def names(self) -> tuple[str, ...]:
        """The machines of the chain, the master first."""
        return self._chain.machines if self._chain is not None else ()

    def follow(self, epoch: int, order: Sequence[str]) -> None:
        """The operator's order, from the next delivery on."""
        self._order = (epoch, tuple(order))

    def seen(self, number: tuple[int, int]) -> None:
        """A relay has adopted the chain of this (epoch, revision), from whomever."""
        self._newest_seen = max(self._newest_seen, number)

    async def deliver(
        self, version: int, ship: PushWeights, anew: bool, wanted: Callable[[], bool]
    ) -> list[RolloutMachine]:
        """The machines whose relays hold `version` whole, as long as it is `wanted`: all that were seated in time. Who
        cannot is lost on the way. `anew`: it is shipped even if the master holds it. Raises what `ship` raises."""
        clock = asyncio.get_running_loop().time
        chained: list[RolloutMachine] = []
        shipped: float | None = None
        while self._seats.seated and wanted():
            chain, chained = await self._rechain()
            if not chained or not self._all_seated(chained):
                # While others changed the chain, the last of them may have gone.
                continue
            if anew or chained[0].whole != version:
                news = all(machine.whole != version for machine in chained)
                await ship(version, chain)
                anew, shipped = False, clock() if news else None
            if await self._all_whole(chained, version, wanted):
                self.seconds = clock() - shipped if shipped is not None else self.seconds
                break
        return [machine for machine in chained if self.is_seated(machine)]

    async def mend(self) -> None:
        """Close the chain over who is not here any more, whatever else goes on: who feeds whom is right again before
        the next version comes."""
        if not set(self.names()) <= set(self._seats.seated):
            await self._rechain()

    def report(self, version: int | None) -> None:
        """Tell of the chain, which holds `version`."""
        if self._chain is not None:
            self._reporter.update(relay=_topology(self._chain, version))

    def _closed(self, chain: ChainOrder) -> None:
        """Over a gap: what all held, those that are left hold. Told at once."""
        told = self._reporter.draft.relay
        self._reporter.event(relay=_topology(chain, told.weight_version if told is not None else None))

    def is_seated(self, machine: RolloutMachine) -> bool:
        """Whether it is this one that sits there: who was lost and came back holds nothing and is in no chain."""
        return self._seats.seated.get(machine.name) is machine

    async def _rechain(self) -> tuple[Chain, list[RolloutMachine]]:
        """Have every seated machine's relay adopt the chain over them; these machines, the master first. Who could not
        is lost."""
        async with self._changing:
            machines, before = dict(self._seats.seated), self.names()
            epoch, order = self._order
            holds = {name: machine.whole for name, machine in machines.items()}
            moved = [name for name, machine in machines.items() if machine.joined is None]
            now = self._chain = repair(self._chain, epoch, order, holds, moved, self._newest_seen)
            chained = [machines[name] for name in now.machines]
            chain = Chain(now.epoch, now.revision, tuple(machine.address for machine in chained))
            await asyncio.gather(*(self._adopt(machine, chain) for machine in chained))
            if set(now.machines) < set(before):
                self._closed(now)
            return chain, chained

    async def _adopt(self, machine: RolloutMachine, chain: Chain) -> None:
        number = (chain.epoch, chain.revision)
        if machine.joined == number:
            return
        try:
            await machine.unless_gone(machine.relay.join(self._term, chain))
        except StaleTerm:
            raise
        except PeerError as error:
            self._seats.lose_this(machine, loss_reason(error), error)
        else:
            machine.joined = number

    async def _all_whole(self, chained: Sequence[RolloutMachine], version: int, wanted: Callable[[], bool]) -> bool:
        """Wait until the relays of these machines hold `version`. False when it is not wanted any more, or one was
        lost, though it may be back by now, or stands still: go around again."""
        clock = asyncio.get_running_loop().time
        moved = clock()
        while self._all_seated(chained) and wanted():
            pending = [machine for machine in chained if machine.whole is None or machine.whole < version]
            if not pending:
                return True
            counts = [machine.received for machine in pending]
            await asyncio.gather(*(machine.unless_gone(self._seats.look(machine)) for machine in pending))
            now = clock()
            if counts != [machine.received for machine in pending] or any(m.whole == version for m in pending):
                moved = now
            elif now - moved > self._settings.rebuild_timeout:
                self._stands_still(chained, pending[0], version)
            await asyncio.sleep(min(LOOK_SECONDS, self._settings.heartbeat))
        return False

    def _stands_still(self, chained: Sequence[RolloutMachine], first: RolloutMachine, version: int) -> None:
        """`first` is the first one without it: either it takes nothing, or nobody passes it on to it."""
        place = next(place for place, machine in enumerate(chained) if machine is first)
        feeder = chained[place - 1] if place else None
        now, name = asyncio.get_running_loop().time(), feeder.name if feeder is not None else TRAINER
        if not self._stand_stills.record(name, first.name, first.member.incarnation, now):
            self._seats.lose_this(first, "WeightsNotReceived", f"version {version}")
        elif feeder is not None:
            self._seats.lose_this(feeder, "WeightsNotPassedOn", f"version {version} to {first.name}")
        else:
            self._seats.lose_this(first, NOT_SHIPPED, f"version {version}")

    def _all_seated(self, machines: Sequence[RolloutMachine]) -> bool:
        return all(self.is_seated(machine) for machine in machines)


def _topology(chain: ChainOrder, version: int | None) -> RelayTopology:
    return RelayTopology(
        epoch=chain.epoch,
        revision=chain.revision,
        master=chain.master,
        chain=chain.machines,
        weight_version=version,
    )
