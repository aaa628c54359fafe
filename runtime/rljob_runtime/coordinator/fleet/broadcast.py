"""Broadcast: weights over the chain of relays, and the chain's repair (Laminar, section 4).

Machines leave and join while a version is on its way. So a broadcast loops: it repairs the chain over the current
members, pushes the version if the master lacks it, and waits until each relay holds it or fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rljob_api.status import RelayTopology
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, loss_reason_for
from rljob_runtime.coordinator.fleet.view import FleetView
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import Chain, PeerError, StaleTerm
from rljob_runtime.scheduling.fault_detection.machine_loss import NOT_SHIPPED
from rljob_runtime.scheduling.fault_detection.relay_chain import ChainOrder, repair
from rljob_runtime.scheduling.fault_detection.stall_detection import StalledLinks

PushWeights = Callable[[int, Chain], Awaitable[None]]
"""Has the trainer send a version to the master of a chain."""

TRAINER = ""
"""The sender to the master, among the names of machines."""
CHECK_SECONDS = 0.05
"""Longest pause between two status checks of relays that lack a version."""


class Broadcast:
    """Weight transfers to the fleet's relays, one at a time."""

    def __init__(self, fleet: FleetView, term: int, settings: Settings, reporter: Reporter) -> None:
        self._fleet = fleet
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._order: tuple[int, tuple[str, ...]] = (0, ())
        self._chain: ChainOrder | None = None
        self._newest_revision = (0, -1)
        self._changing = asyncio.Lock()
        self._stalled_links = StalledLinks(settings.again_within)
        self.seconds: float | None = None
        """Duration of the last broadcast of a new version, from the trainer's memory to every relay."""

    @property
    def chain(self) -> ChainOrder | None:
        """The current chain; None before the first one."""
        return self._chain

    def names(self) -> tuple[str, ...]:
        """Return the machines of the chain, the master first."""
        return self._chain.machines if self._chain is not None else ()

    def set_order(self, epoch: int, order: Sequence[str]) -> None:
        """Use the operator's epoch and order from the next broadcast on."""
        self._order = (epoch, tuple(order))

    def record_revision(self, revision: tuple[int, int]) -> None:
        """Record the (epoch, revision) that a relay has adopted, from this coordinator or an earlier one."""
        self._newest_revision = max(self._newest_revision, revision)

    async def push_to_relays(
        self, version: int, push: PushWeights, force: bool, requested: Callable[[], bool]
    ) -> list[RolloutMachine]:
        """Return the machines whose relays hold `version` completely.

        Machines that fail to receive it are marked lost. Stops early when `requested()` is false. With `force` the
        version is pushed even if the master holds it. Raises what `push` raises.
        """
        clock = asyncio.get_running_loop().time
        chained: list[RolloutMachine] = []
        pushed: float | None = None
        while self._fleet.joined and requested():
            chain, chained = await self._update_chain()
            if not chained or not self._all_members(chained):
                # The last member may have left during the update of the chain.
                continue
            began = clock()
            if force or chained[0].complete_version != version:
                is_new = all(machine.complete_version != version for machine in chained)
                await push(version, chain)
                force, pushed = False, clock() if is_new else None
            if await self._wait_until_complete(chained, version, requested, began):
                self.seconds = clock() - pushed if pushed is not None else self.seconds
                break
        return [machine for machine in chained if self._fleet.is_member(machine)]

    async def repair_chain(self) -> None:
        """Close the chain over machines that have left, also while no version is on its way."""
        if not set(self.names()) <= set(self._fleet.joined):
            await self._update_chain()

    def report(self, version: int | None) -> None:
        """Report the chain, whose relays hold `version`."""
        if self._chain is not None:
            self._reporter.update(relay=_topology(self._chain, version))

    def _report_repair(self, chain: ChainOrder) -> None:
        """Report a chain that lost members, immediately. Its version does not change."""
        relay = self._reporter.draft.relay
        self._reporter.event(relay=_topology(chain, relay.weight_version if relay is not None else None))

    async def _update_chain(self) -> tuple[Chain, list[RolloutMachine]]:
        """Have the relay of every member adopt the chain over all of them. Machines whose relay fails are marked lost.

        Returns the chain and its machines, the master first.
        """
        async with self._changing:
            machines, before = dict(self._fleet.joined), self.names()
            epoch, order = self._order
            holds = {name: machine.complete_version for name, machine in machines.items()}
            moved = [name for name, machine in machines.items() if machine.adopted_chain is None]
            now = self._chain = repair(self._chain, epoch, order, holds, moved, self._newest_revision)
            chained = [machines[name] for name in now.machines]
            chain = Chain(now.epoch, now.revision, tuple(machine.address for machine in chained))
            await asyncio.gather(*(self._adopt(machine, chain) for machine in chained))
            if set(now.machines) < set(before):
                self._report_repair(now)
            return chain, chained

    async def _adopt(self, machine: RolloutMachine, chain: Chain) -> None:
        revision = (chain.epoch, chain.revision)
        if machine.adopted_chain == revision:
            return
        try:
            await machine.run_unless_left(machine.relay.join(self._term, chain))
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, loss_reason_for(error), error)
        else:
            machine.adopted_chain = revision

    async def _wait_until_complete(
        self, chained: Sequence[RolloutMachine], version: int, requested: Callable[[], bool], began: float
    ) -> bool:
        """Wait until the relays of these machines hold `version`, which is on its way since `began`.

        Returns False if the version is not requested any more, or a machine left or stalled: then the chain has to be
        updated, because the machine may have joined again meanwhile.
        """
        clock = asyncio.get_running_loop().time
        moved = clock()
        while self._all_members(chained) and requested():
            pending = [one for one in chained if one.complete_version is None or one.complete_version < version]
            if not pending:
                return True
            counts = [machine.chunks_received for machine in pending]
            await asyncio.gather(*(machine.run_unless_left(self._fleet.check(machine)) for machine in pending))
            for machine in pending:
                if machine.complete_version == version:
                    self._fleet.timeline.span(f"{machine.name}/relay", "receive", began, version=version)
            now = clock()
            received = [machine.chunks_received for machine in pending]
            if counts != received or any(machine.complete_version == version for machine in pending):
                moved = now
            elif now - moved > self._settings.rebuild_timeout:
                self._resolve_stall(chained, pending[0], version)
            await asyncio.sleep(min(CHECK_SECONDS, self._settings.heartbeat))
        return False

    def _resolve_stall(self, chained: Sequence[RolloutMachine], first: RolloutMachine, version: int) -> None:
        """Mark one side of a stalled link as lost: `first`, the first machine without the version, or its sender."""
        index = next(index for index, machine in enumerate(chained) if machine is first)
        sender = chained[index - 1] if index else None
        now, name = asyncio.get_running_loop().time(), sender.name if sender is not None else TRAINER
        if not self._stalled_links.record(name, first.name, first.member.incarnation, now):
            self._fleet.mark_machine_lost(first, "WeightsNotReceived", f"version {version}")
        elif sender is not None:
            self._fleet.mark_machine_lost(sender, "WeightsNotPassedOn", f"version {version} to {first.name}")
        else:
            self._fleet.mark_machine_lost(first, NOT_SHIPPED, f"version {version}")

    def _all_members(self, machines: Sequence[RolloutMachine]) -> bool:
        return all(self._fleet.is_member(machine) for machine in machines)


def _topology(chain: ChainOrder, version: int | None) -> RelayTopology:
    return RelayTopology(
        epoch=chain.epoch,
        revision=chain.revision,
        master=chain.master,
        chain=chain.machines,
        weight_version=version,
    )
