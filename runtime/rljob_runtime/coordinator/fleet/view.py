"""Fleet view: what the failure detector, the broadcast and the weights may read and change of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.reporting.timeline import Timeline


class FleetView(Protocol):
    """The members of the fleet; `fleet.Fleet` implements it."""

    @property
    def joined(self) -> Mapping[str, RolloutMachine]:
        """The machines that have joined, by name."""
        ...

    @property
    def timeline(self) -> Timeline:
        """Where intervals are recorded."""
        ...

    def is_member(self, machine: RolloutMachine) -> bool:
        """Return whether this very machine is a member. A later one of the same name holds none of its weights."""
        ...

    def mark_machine_lost(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """Mark this machine as lost, unless it has already left."""
        ...

    async def check(self, machine: RolloutMachine) -> bool:
        """Read the status of its relay; return False if no answer comes."""
        ...

    def notify(self) -> None:
        """Report that members, layouts or loaded weights have changed."""
        ...
