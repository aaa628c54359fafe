"""Suspicion: decides which machines are lost, and which witnesses confirm it.

The coordinator alone removes a machine from the chain, after two missed heartbeats in a row. That is quick, and
reversed when the machine answers. Replacement takes a second witness: a neighbour in the chain that cannot reach the
machine either. A machine that refuses a connection counts as reachable: its process ended and is restarted in place. A
machine that any member reaches is not lost: the network between the others is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

COORDINATOR = "coordinator"
MISSED_HEARTBEATS = 2
"""Consecutive misses after which a machine is silent."""
NEIGHBOURS = 2
"""Number of neighbours to ask: one of them may be lost too."""
ANSWERS_KEPT = 20
TIMES_SLOWEST = 4.0
"""A heartbeat is late after this multiple of the slowest recent answer. Machines that share processors with engines
answer slowly under load; this separates a busy machine from a lost one."""
MOST_SECONDS = 5.0


@dataclass(frozen=True)
class Heartbeats:
    """Heartbeat history of a machine. `missed`: consecutive misses; `answers`: seconds of the last answers."""

    missed: int = 0
    answers: tuple[float, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether the machine leaves the chain."""
        return self.missed >= MISSED_HEARTBEATS

    def timeout(self, heartbeat: float) -> float:
        """Return the seconds after which a heartbeat is missed.

        Half a heartbeat if answers are quick: a machine without power leaves the chain after at most two and a half
        heartbeats."""
        slowest = max(self.answers, default=0.0)
        return max(heartbeat / 2, min(MOST_SECONDS, TIMES_SLOWEST * slowest))

    def record_answer(self, seconds: float) -> Heartbeats:
        """Record an answer after this time. A late answer counts."""
        return Heartbeats(0, (*self.answers, seconds)[-ANSWERS_KEPT:])

    def record_miss(self, heartbeat: float, own_delay: float) -> Heartbeats:
        """Record a timeout. `own_delay`: seconds by which the coordinator itself was late.

        A coordinator that was late itself counts no miss: the answer may wait in its own queue."""
        return self if own_delay > heartbeat / 2 else replace(self, missed=self.missed + 1)


@dataclass(frozen=True)
class Suspicion:
    """The coordinator's suspicion of a machine.

    `unreachable_from`, `reachable_from`: neighbours by their last report."""

    reason: str
    unreachable_from: frozenset[str] = frozenset()
    reachable_from: frozenset[str] = frozenset()

    def with_report(self, neighbour: str, reached: bool) -> Suspicion:
        """Return the suspicion with a neighbour's report, which replaces its former one."""
        silent_to, seen_by = self.unreachable_from - {neighbour}, self.reachable_from - {neighbour}
        if reached:
            return replace(self, unreachable_from=silent_to, reachable_from=seen_by | {neighbour})
        return replace(self, unreachable_from=silent_to | {neighbour}, reachable_from=seen_by)

    def witnesses(self, present: Collection[str]) -> tuple[str, ...]:
        """Return the witnesses for the loss, the coordinator first.

        Only reports of machines that are `present` count: a lost machine may have been cut off when it reported."""
        if self.reachable_from & set(present):
            return (COORDINATOR,)
        return (COORDINATOR, *sorted(self.unreachable_from & set(present)))


def neighbours(chain: Sequence[str], machine: str, present: Collection[str]) -> tuple[str, ...]:
    """Return the machines to ask about a machine, nearest in the chain first.

    These are its predecessor and successor, or the next ones if those are lost. `chain`: as it was before the repair.
    """
    others = [name for name in chain if name in present and name != machine]
    others += sorted(name for name in present if name not in chain and name != machine)
    place = {name: index for index, name in enumerate(chain)}
    here = place.get(machine, len(chain))
    return tuple(sorted(others, key=lambda name: (abs(place.get(name, 2 * len(chain) + 1) - here), name))[:NEIGHBOURS])
