"""KV handover: keys and values of the responses that a switch stops, from a machine's old engines to its new ones.

The old engines write a file each when the responses are stopped; other machines go on meanwhile. Each request on the
machine's new replicas names the file that has its KV. A file is dropped when no request can need it any more: all have
a token, have ended, or generate elsewhere. KV is an optimisation, so a refusal, a failed call or a missing file costs a
prefill and nothing else.

Each replica drops its file by itself, so that one which hangs holds back no other. A drop that fails is repeated
(`scheduling/adaptive_tp/kv_drops.py`), also in later rounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, machine_of
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.protocols import KvRefusal, KvStats, PeerError, PeerTimeout, Replica, StaleTerm
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.kv_drops import WAIT_SECONDS
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, record_export, record_import, stop_bound
from rljob_runtime.scheduling.round_plan import Launch

log = logging.getLogger(__name__)


@dataclass
class _Handover:
    """The files of one switch.

    `files`: the file of each response. `written`: bytes by replica. `asked`: responses whose request named it, with
    their tokens then. `before`: totals of the new replicas before they took anything."""

    switch: LayoutSwitch
    machine: RolloutMachine
    written: Mapping[str, int]
    files: Mapping[TrajectoryKey, str]
    asked: dict[TrajectoryKey, int] = field(default_factory=dict)
    before: dict[str, KvStats] = field(default_factory=dict)


class KvHandovers:
    """The KV handovers of one round: at most one of each machine."""

    def __init__(self, fleet: Fleet, pool: ReplicaPool, term: int, costs: SwitchCosts) -> None:
        self._fleet = fleet
        self._pool = pool
        self._term = term
        self._costs = costs
        self._written: dict[str, _Handover] = {}
        """Of machines whose responses are not requeued yet: they look as if they generated, and need their files."""
        self._open: dict[str, _Handover] = {}
        self._closed = False
        self._clock = asyncio.get_running_loop().time

    async def end(self, machine: str) -> None:
        """End the handover of a machine that switches again: what its engines took of it is measured now or never."""
        if (handover := self._open.get(machine)) is not None:
            await self._pool.collect(handover.before.keys())
            self._end(machine)

    async def stop(self, switch: LayoutSwitch, machine: RolloutMachine, stopped: Sequence[Launch]) -> None:
        """Stop the responses of a machine that switches. Engines whose KV moves write it first.

        A machine that does not stop within its bound is lost. `open` has to follow."""
        try:
            async with asyncio.timeout(stop_bound(switch)):
                if switch.moves_kv:
                    await self._export(switch, machine, stopped)
                else:
                    await self._pool.stop(stopped)
        except TimeoutError:
            error = PeerTimeout("its responses did not stop in time for its layout switch")
            self._fleet.mark_machine_lost(machine, "CommandFailed", error)

    def open(self, machine: str) -> None:
        """Hand over what a machine has written: its responses wait for a launch."""
        if (handover := self._written.pop(machine, None)) is not None:
            self._open[machine] = handover

    async def _export(self, switch: LayoutSwitch, machine: RolloutMachine, stopped: Sequence[Launch]) -> None:
        kv, replicas = self._pool.kv_size, {launch.lease.replica for launch in stopped}
        dropping = await self._still_dropping(machine, replicas)
        for name in replicas - dropping:
            machine.kv_drops.record_written(name)
        receipts, _ = await asyncio.gather(
            self._pool.export_kv([launch for launch in stopped if launch.lease.replica not in dropping]),
            self._pool.stop([launch for launch in stopped if launch.lease.replica in dropping]),
        )
        refused = dict.fromkeys(dropping, KvRefusal.DROPPING)
        for replica, receipt in receipts:
            if receipt.refusal is not None:
                refused[replica.name] = receipt.refusal
                log.info("%s: KV is computed again instead of moved: %s", replica.name, receipt.message)
        moved = {key for _, receipt in receipts for key in receipt.tokens}
        switch.not_written |= {
            one.key: refused.get(one.lease.replica, KvRefusal.NO_BLOCK) for one in stopped if one.key not in moved
        }
        written = [(replica, receipt) for replica, receipt in receipts if receipt.file is not None]
        if not written:
            return
        record_export(self._costs, switch, [receipt for _, receipt in written], kv)
        nbytes = {replica.name: receipt.nbytes for replica, receipt in written}
        files = {key: str(receipt.file) for _, receipt in written for key in receipt.tokens}
        self._written[switch.machine] = _Handover(switch, machine, nbytes, files)
        if self._closed:
            self.close()

    async def expect(self, launches: Sequence[Launch]) -> None:
        """Read the totals of the replicas that are about to take KV, so that what they take can be measured."""
        fresh: dict[str, _Handover] = {}
        for launch in launches:
            name = launch.lease.replica
            handover = self._open.get(machine_of(name))
            if handover is not None and launch.key in handover.files and name not in handover.before:
                fresh[name] = handover
        if not fresh:
            return
        await self._pool.collect(fresh)
        for name, handover in fresh.items():
            if (totals := self._pool.kv_stats(name)) is not None:
                handover.before[name] = totals

    def file_of(self, launch: Launch, tokens: int) -> str | None:
        """Return the file that has KV of a response which goes on with this many `tokens` of its own."""
        handover = self._open.get(machine_of(launch.lease.replica))
        if handover is None or (file := handover.files.get(launch.key)) is None:
            return None
        handover.asked[launch.key] = tokens
        return file

    def end_taken(
        self,
        waits: Callable[[TrajectoryKey], bool],
        replica_of: Callable[[TrajectoryKey], str | None],
        length_of: Callable[[TrajectoryKey], int],
    ) -> None:
        """End the handovers whose files no response needs any more.

        `waits`: whether a response waits for a launch. `replica_of`: the replica that generates it. `length_of`: its
        tokens so far."""

        def needs(handover: _Handover, key: TrajectoryKey) -> bool:
            if waits(key):
                return True
            replica = replica_of(key)
            own = replica is not None and machine_of(replica) == handover.switch.machine
            return own and length_of(key) <= handover.asked.get(key, 0)

        for name, handover in list(self._open.items()):
            member = self._fleet.is_member(handover.machine)
            if not member or not any(needs(handover, key) for key in handover.files):
                self._end(name)
        for machine in self._fleet.joined.values():
            self._drop_due(machine)

    def close(self) -> None:
        """End all handovers: no request of another weight version may name their files.

        Files of a machine that is still writing end when it has."""
        self._closed = True
        for name in list(self._written):
            self.open(name)
        for name in list(self._open):
            self._end(name)

    def _end(self, name: str) -> None:
        if (handover := self._open.pop(name, None)) is None:
            return
        if self._fleet.is_member(handover.machine):
            # Totals of processes that came later are no continuation of those before.
            totals = {replica: self._pool.kv_stats(replica) for replica in handover.before}
            taken = [now.since(handover.before[replica]) for replica, now in totals.items() if now is not None]
            record_import(self._costs, handover.switch, taken)
            handover.machine.kv_drops.add(handover.written, self._clock())
            self._drop_due(handover.machine)

    def _drop_due(self, machine: RolloutMachine) -> None:
        """Have replicas of a machine remove the files that are due."""
        if due := machine.kv_drops.due(self._clock()):
            for replica in machine.peers.replicas:
                if replica.name in due and replica.name not in machine.dropping:
                    machine.kv_drops.begin(replica.name)
                    drop = self._drop(machine, replica)
                    machine.dropping[replica.name] = self._fleet.run_in_background(drop)

    async def _drop(self, machine: RolloutMachine, replica: Replica) -> None:
        try:
            await machine.run_while_member(replica.drop_kv(self._term))
        except StaleTerm:
            raise
        except PeerError as error:
            # Its file ends with its process, its term or its weight version.
            delay = machine.kv_drops.record_failure(replica.name, self._clock())
            again = "it is not asked again" if delay is None else f"it is asked again in {delay:g} s"
            log.warning("%s keeps its KV file, %s: %s", replica.name, again, error)
        else:
            machine.kv_drops.record_removed(replica.name)
        finally:
            del machine.dropping[replica.name]

    async def _still_dropping(self, machine: RolloutMachine, replicas: Collection[str]) -> set[str]:
        """Wait a little for removals in progress; return which of these replicas still remove a file."""
        if drops := [drop for name, drop in machine.dropping.items() if name in replicas]:
            await asyncio.wait(drops, timeout=WAIT_SECONDS)
        return machine.dropping.keys() & set(replicas)
