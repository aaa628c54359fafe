"""Relay chain: the order in which relays pass weights on, and its repair.

The operator owns the epoch and the order of members. The coordinator removes lost machines, puts a holder of the newest
weights first and raises the revision. Chains are compared by (epoch, revision).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ChainOrder:
    """Machines by name, the master first."""

    epoch: int
    revision: int
    machines: tuple[str, ...]

    @property
    def master(self) -> str | None:
        """The machine that receives from the trainer."""
        return self.machines[0] if self.machines else None

    def predecessor(self, machine: str) -> str | None:
        """Return the machine that sends to this one; None for the master and for machines outside the chain."""
        if machine not in self.machines[1:]:
            return None
        return self.machines[self.machines.index(machine) - 1]


def repair(
    current: ChainOrder | None,
    epoch: int,
    order: Sequence[str],
    holds: Mapping[str, int | None],
    moved: Collection[str] = (),
    seen: tuple[int, int] = (0, -1),
) -> ChainOrder:
    """Return the chain over the live machines.

    `order`: the operator's order. `holds`: for every live machine the newest version that its relay holds completely.
    Live machines outside `order` come last, by name. The master is the first machine with the newest complete version.
    `moved`: live machines whose relay restarted: the same name at another address. `seen`: the highest (epoch,
    revision) that any relay has adopted.

    The revision rises if order or addresses change within an epoch; (epoch, revision) never falls."""
    seen = max(seen, (current.epoch, current.revision)) if current is not None else seen
    epoch = max(epoch, seen[0])
    named = [machine for machine in dict.fromkeys(order) if machine in holds]
    live = named + sorted(machine for machine in holds if machine not in named)
    newest = max((version for version in holds.values() if version is not None), default=None)
    holders = [machine for machine in live if newest is not None and holds[machine] == newest]
    if holders:
        live = [holders[0], *(machine for machine in live if machine != holders[0])]
    machines = tuple(live)
    unchanged = current is not None and current.epoch == epoch and current.machines == machines
    if current is not None and unchanged and not any(machine in moved for machine in machines):
        return current
    return ChainOrder(epoch, seen[1] + 1 if seen[0] == epoch else 0, machines)
