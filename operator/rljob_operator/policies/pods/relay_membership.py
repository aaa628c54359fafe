"""Relay membership: epoch, order and master of the weight relay chain.

The operator owns the membership, and the coordinator repairs within it. Every change of membership is a new epoch; a
machine's new incarnation is a new member. Remaining members keep their order, so that only the neighbours of a change
reconnect. A new member joins where the path of the weights grows least: beside machines of its node, else of its rack,
else at the end. So weights cross the link into each location once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from operator import add, sub

from rljob_api.status import Member, RelayTopology, Role
from rljob_operator.policies.base.observation import Observed

Location = tuple[str, ...]
"""Location of a machine: labels of its node, the widest first, and the node's name."""
FEEDER = "trainer-0"
"""The machine that sends to the master."""


def locations(observed: Observed, keys: Sequence[str]) -> dict[str, Location]:
    """Return the locations of all machines with a node, by the labels `keys` of nodes.

    A missing or invisible label does not distinguish locations.
    """
    found: dict[str, Location] = {}
    for pod in sorted(observed.pods, key=lambda pod: pod.incarnation):
        if pod.node is not None:
            labels = observed.nodes[pod.node].labels if pod.node in observed.nodes else {}
            found[pod.machine] = (*(labels.get(key, "") for key in keys), pod.node)
    return found


def next_topology(
    previous: RelayTopology | None,
    previous_members: Sequence[Member],
    members: Sequence[Member],
    machines: Sequence[str],
    smallest: int,
    highest_epoch: int,
    where: Mapping[str, Location] | None = None,
) -> RelayTopology:
    """Return the chain over the rollout members that have an address and are in `machines`.

    A first chain waits for `smallest` members, so that a starting job does not have one epoch a pod. The epoch is above
    `highest_epoch`, the highest on any pod's label. `where`: the known locations of machines.
    """
    now = _addresses(members, machines)
    before = previous or RelayTopology()
    floor = max(before.epoch, highest_epoch)
    if not now:
        return RelayTopology(epoch=before.epoch)
    if not before.chain and len(now) < smallest:
        return before
    then = _addresses(previous_members, before.chain)
    stayed = [machine for machine in before.chain if machine in now and then.get(machine) == now[machine]]
    if tuple(stayed) == before.chain and len(stayed) == len(now) and before.epoch > 0:
        return before
    chain = _joined(stayed, before.chain, [machine for machine in machines if machine in now], where or {})
    return RelayTopology(epoch=floor + 1, master=chain[0] if chain else None, chain=chain)


def without_lost(
    before: RelayTopology | None, previous_members: Sequence[Member], members: Sequence[Member], highest_epoch: int
) -> RelayTopology | None:
    """Remove lost members from the chain. No machine joins it."""
    if before is None or not before.chain:
        return before
    return next_topology(before, previous_members, members, before.chain, 1, highest_epoch)


def dissolved(before: RelayTopology | None) -> RelayTopology | None:
    """Remove the chain and keep its epoch: the next chain is a new epoch, not its absence."""
    return None if before is None else RelayTopology(epoch=before.epoch)


def chain_length(order: RelayTopology, reported: RelayTopology | None) -> int:
    """Count the machines of the operator's `order` that are in the coordinator's chain.

    The coordinator closes the chain over unreachable machines. Without a report of it all machines count.
    """
    return len(order.chain) if reported is None else len(set(order.chain) & set(reported.chain))


def _joined(
    stayed: Sequence[str], before: Sequence[str], machines: Sequence[str], where: Mapping[str, Location]
) -> tuple[str, ...]:
    """Insert new machines into the chain of the remaining ones.

    A machine with a new pod returns to its place, unless that is a detour now.
    """
    chain, order = list(stayed), {machine: number for number, machine in enumerate(machines)}
    former = {machine: place for place, machine in enumerate(before)}
    way = _Way([where.get(FEEDER), *(where.get(other, ()) for other in chain), None])
    joining = set(machines) - set(stayed)
    for machine in sorted(joining, key=lambda one: (former.get(one, len(before)), order[one])):
        wished = len(chain)
        if machine in former:
            wished = sum(former.get(other, len(before)) < former[machine] for other in chain)
        here = where.get(machine, ())
        detours = way.detours(here)
        least = min(detours)
        last = len(detours) - 1 - detours[::-1].index(least)
        place = wished if detours[wished] == least else last
        chain.insert(place, machine)
        way.insert(place, here)
    return tuple(chain)


class _Way:
    """Path of the weights: the feeder, the chain, and an open end.

    A long chain has few locations: the distance of two is computed once.
    """

    def __init__(self, stops: list[Location | None]) -> None:
        self._numbers: dict[Location | None, int] = {}
        self._locations: list[Location | None] = []
        self._distances: list[list[int]] = []
        self._stops = [self._number(stop) for stop in stops]
        self._steps = [self._distances[one][other] for one, other in pairwise(self._stops)]

    def detours(self, here: Location) -> list[int]:
        """Return by how much the path grows with a stop at each place, from the first to the end."""
        distances = self._distances[self._number(here)]
        far = list(map(distances.__getitem__, self._stops))
        return list(map(sub, map(add, far, islice(far, 1, None)), self._steps))

    def insert(self, place: int, here: Location) -> None:
        """Insert a stop as the chain's member of this number."""
        new = self._number(here)
        before, after = self._stops[place], self._stops[place + 1]
        self._stops.insert(place + 1, new)
        self._steps[place : place + 1] = [self._distances[before][new], self._distances[new][after]]

    def _number(self, location: Location | None) -> int:
        """Return the number of a location, and of a new one compute the distances to all."""
        if location not in self._numbers:
            self._numbers[location] = len(self._locations)
            self._locations.append(location)
            row = [_distance(location, other) for other in self._locations]
            for known, distance in zip(self._distances, row, strict=False):
                known.append(distance)
            self._distances.append(row)
        return self._numbers[location]


def _distance(one: Location | None, other: Location | None) -> int:
    """Count the levels that differ, from the widest that does. An open end has no distance."""
    if one is None or other is None or one == other:
        return 0
    for depth, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            return max(len(one), len(other)) - depth
    return abs(len(one) - len(other))


def _addresses(members: Sequence[Member], machines: Sequence[str]) -> Mapping[str, tuple[int, str]]:
    wanted = set(machines)
    return {
        member.machine: (member.incarnation, member.ip)
        for member in members
        if member.role is Role.ROLLOUT and member.ip is not None and member.machine in wanted
    }
