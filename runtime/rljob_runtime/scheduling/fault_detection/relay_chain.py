"""The order in which weights travel from relay to relay.

The operator owns the epoch and the order of the members; the coordinator leaves out the dead, puts a holder of the
newest weights first and raises the revision (DESIGN §8, Relay). A chain is compared as (epoch, revision).
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
        """The machine that feeds this one; None for the master and for strangers."""
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
    """The chain over the live machines.

    `order` is the operator's; `holds` has every live machine with the newest version that its relay holds whole. Live
    machines that the operator does not name yet come last, by name. The master is the first one that holds the newest
    version whole. `moved` are live machines whose relay was started anew: the same name at another address. `seen` is
    the highest (epoch, revision) that any relay has adopted, from whomever.

    The revision rises when order or addresses change within an epoch; (epoch, revision) never falls.
    """
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
