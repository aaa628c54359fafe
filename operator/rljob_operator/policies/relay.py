"""Membership of the weight relay chain: epoch, order, master.

The operator owns the membership, the coordinator repairs within it (DESIGN: relay). Every change of membership is a new
epoch; a machine's new incarnation is a new member. Survivors keep their order, so that only the neighbours of a change
must connect anew, and newcomers join at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_api.status import Member, RelayTopology, Role


def next_topology(
    previous: RelayTopology | None,
    previous_members: Sequence[Member],
    members: Sequence[Member],
    machines: Sequence[str],
    smallest: int,
    highest_epoch: int,
) -> RelayTopology:
    """The chain over the rollout members that have an address and are among the target's `machines`.

    A first chain waits for `smallest` members, so that a starting job does not pass through an epoch a pod. The epoch
    is above `highest_epoch`, the highest on any pod's label.
    """
    now = _addresses(members, machines)
    before = previous or RelayTopology()
    floor = max(before.epoch, highest_epoch)
    if not now:
        return RelayTopology(epoch=before.epoch)
    if not before.chain and len(now) < smallest:
        return before
    kept = [machine for machine in before.chain if machine in now]
    chain = tuple(kept + sorted(now.keys() - set(kept), key=list(machines).index))
    then = _addresses(previous_members, before.chain)
    unchanged = chain == before.chain and all(then.get(machine) == now[machine] for machine in chain)
    if unchanged and before.epoch > 0:
        return before
    return RelayTopology(epoch=floor + 1, master=chain[0] if chain else None, chain=chain)


def shortened(
    before: RelayTopology | None, previous_members: Sequence[Member], members: Sequence[Member], highest_epoch: int
) -> RelayTopology | None:
    """The chain without the members that are gone; nobody joins it."""
    if before is None or not before.chain:
        return before
    return next_topology(before, previous_members, members, before.chain, 1, highest_epoch)


def disbanded(before: RelayTopology | None) -> RelayTopology | None:
    """No chain any more. The epoch stays: the next chain, not the absence of one, is a new epoch."""
    return None if before is None else RelayTopology(epoch=before.epoch)


def _addresses(members: Sequence[Member], machines: Sequence[str]) -> Mapping[str, tuple[int, str]]:
    return {
        member.machine: (member.incarnation, member.ip)
        for member in members
        if member.role is Role.ROLLOUT and member.ip is not None and member.machine in machines
    }
