"""Who is believed dead, and by whom.

The coordinator alone decides, hastily, that a machine is out of the chain: two beats in a row without an answer. That
is taken back when the machine answers again. To have it replaced takes a second witness (DESIGN §8, Node loss): a
neighbour in the chain whom the machine does not answer either. A machine that refuses a connection answers: its process
ended, which is repaired in place. And what anyone reaches is not gone, whoever else does not: it is the network between
them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

COORDINATOR = "coordinator"
MISSED_HEARTBEATS = 2
"""In a row, until a machine counts as silent."""
NEIGHBOURS = 2
"""Whose word is asked: one of them might be gone too."""
ANSWERS_KEPT = 20
TIMES_SLOWEST = 4.0
"""A beat is late when it takes so many times what the slowest of the last ones took: on machines that share their
processors with the engines, that is what tells a busy one from one that is gone."""
MOST_SECONDS = 5.0


@dataclass(frozen=True)
class Heartbeats:
    """What the beats of a machine tell. `missed`: in a row; `answers`: seconds that the last ones took."""

    missed: int = 0
    answers: tuple[float, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether the machine is out of the chain."""
        return self.missed >= MISSED_HEARTBEATS

    def timeout(self, heartbeat: float) -> float:
        """Seconds after which a beat is missed: half a heartbeat where answers are quick, so that a machine that has no
        power is out of the chain after two and a half heartbeats at the most."""
        slowest = max(self.answers, default=0.0)
        return max(heartbeat / 2, min(MOST_SECONDS, TIMES_SLOWEST * slowest))

    def record_answer(self, seconds: float) -> Heartbeats:
        """It is there, after so long. A late answer is one too."""
        return Heartbeats(0, (*self.answers, seconds)[-ANSWERS_KEPT:])

    def record_miss(self, heartbeat: float, own_delay: float) -> Heartbeats:
        """No answer within the patience. `own_delay`: how much later than planned the coordinator looked. One that
        stood still itself blames nobody: the answer may be waiting at its own door."""
        return self if own_delay > heartbeat / 2 else replace(self, missed=self.missed + 1)


@dataclass(frozen=True)
class Suspicion:
    """Of a machine, by the coordinator. `silent_to` and `seen_by`: neighbours, by the last word of each."""

    reason: str
    unreachable_from: frozenset[str] = frozenset()
    reachable_from: frozenset[str] = frozenset()

    def with_report(self, neighbour: str, reached: bool) -> Suspicion:
        """What a neighbour says now counts; what it said before does not."""
        silent_to, seen_by = self.unreachable_from - {neighbour}, self.reachable_from - {neighbour}
        if reached:
            return replace(self, unreachable_from=silent_to, reachable_from=seen_by | {neighbour})
        return replace(self, unreachable_from=silent_to | {neighbour}, reachable_from=seen_by)

    def witnesses(self, present: Collection[str]) -> tuple[str, ...]:
        """Who stands up for it that the machine is gone, the coordinator first. Only the word of machines that are
        `present` counts: one that is lost itself may have been cut off when it spoke."""
        if self.reachable_from & set(present):
            return (COORDINATOR,)
        return (COORDINATOR, *sorted(self.unreachable_from & set(present)))


def neighbours(chain: Sequence[str], machine: str, present: Collection[str]) -> tuple[str, ...]:
    """Whom to ask about a machine, nearest in the chain first: its predecessor and its successor, or who stands next
    to them where they are gone too. `chain`: as it was before the gap was closed."""
    others = [name for name in chain if name in present and name != machine]
    others += sorted(name for name in present if name not in chain and name != machine)
    place = {name: index for index, name in enumerate(chain)}
    here = place.get(machine, len(chain))
    return tuple(sorted(others, key=lambda name: (abs(place.get(name, 2 * len(chain) + 1) - here), name))[:NEIGHBOURS])
