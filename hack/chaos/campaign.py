"""One fault after the other, each once all is well after the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from random import Random

from .inject import Injector, NotPossible
from .observation import Observation
from .recovery import SETTLED, Recovery
from .rows import ROWS, Row
from .schedule import first_possible
from .table import Outcome
from .timeline import Starts, Timeline
from .watching import Watching

STEADY_SECONDS = 300.0
"""Bound on the wait for a whole job before a fault."""
GENERATING_SECONDS = 15.0
"""Bound on the wait for lost machines to generate, once all is well: there may be nothing to generate before the next
update, and the status tells it some seconds later."""


class NotSteady(Exception):
    """The job is not whole, so that no fault can be told from what is wrong already."""


class Campaign:
    """`tell`: is given each outcome as it is there. `starts`: of the machines, when the job began."""

    def __init__(self, watching: Watching, injector: Injector, seed: int, tell: Callable[[Outcome], None]) -> None:
        self._watching = watching
        self._injector = injector
        self._rng = Random(seed)
        self._tell = tell
        self.starts = Starts()

    def run(self, rows: Iterable[str]) -> list[Outcome]:
        """A fault of each of these rows, in order, but for those that find nobody to hit: they wait until they do.
        Raises `NotSteady`."""
        outcomes: list[Outcome] = []
        due = list(rows)
        while due:
            outcomes.append(self._fault(due))
            due.remove(outcomes[-1].row)
            self._tell(outcomes[-1])
        return outcomes

    def _fault(self, due: Sequence[str]) -> Outcome:
        end = time.time() + STEADY_SECONDS
        why = "there is nobody to hit"
        while True:
            seen = self.steady(STEADY_SECONDS)
            row = ROWS[first_possible(due, seen)]
            victims = row.victims(seen, self._rng)
            if victims:
                try:
                    return self._hit(row, victims, seen)
                except NotPossible as error:
                    why = str(error)
            if time.time() >= end:
                return Outcome(row.name, "", None, None, None, (f"not possible: {why}",))
            self._watching.next(2.0)

    def _hit(self, row: Row, victims: tuple[str, ...], before: Observation) -> Outcome:
        injected = self._injector.inject(row.name, victims, before)
        recovery = Recovery(row, victims, before, injected.at)
        again = row.name == "replica-again"
        loss = Timeline(injected.at, recovery.machines, before) if row.watches == "nodes" else None
        try:
            while not recovery.see(self._next(injected.at)) and time.time() < injected.at + row.bound:
                if row.lasts is not None and recovery.taken_back is None and time.time() > injected.at + row.lasts:
                    injected.undo()
                    recovery.taken_back = time.time()
                now = self._watching.last
                if loss is not None:
                    loss.see(now)
                if again and recovery.acted is not None and not now.troubled(victims[0]):
                    again = False
                    if now.incarnation(victims[0]) > before.incarnation(victims[0]):
                        continue  # It had failed before within the window, and this time it was replaced already.
                    # The first was restarted in its place; the second within the window counts.
                    injected = self._injector.inject(row.name, victims, now)
                    recovery = Recovery(row, victims, now, injected.at)
            recovery.give_up()
        finally:
            injected.undo()
        if loss is not None:
            self._follow(loss)
        return Outcome(
            row.name,
            ", ".join(victims),
            recovery.detected,
            recovery.acted,
            recovery.back,
            tuple(dict.fromkeys(recovery.wrong)),
            loss.moments if loss is not None else {},
        )

    def _follow(self, loss: Timeline) -> None:
        """All may be well before the lost machines have made their first tokens."""
        end = time.time() + GENERATING_SECONDS
        while "generating" not in loss.moments and time.time() < end:
            loss.see(self._next(loss.at))

    def _next(self, at: float) -> Observation:
        """The next change, or, when nothing changes, what was seen last: time goes on without changes too."""
        return self._watching.next(0.25) or self._watching.last

    def steady(self, seconds: float) -> Observation:
        """Wait until the job is whole, updates are made, and Kubernetes evicts nobody: after a pause it may hold a node
        to be away that its kubelet will tell of in a moment. Raises `NotSteady`."""
        end = time.time() + seconds
        since: int | None = None
        while time.time() < end:
            seen = self._watching.next(1.0) or self._watching.last
            self.starts.see(seen)
            if seen.failed or seen.complete:
                raise NotSteady(seen.failed or "the job is complete")
            if not seen.whole or seen.unready:
                since = None
            elif since is None or seen.round < since:
                since = seen.round
            elif seen.round >= since + SETTLED:
                return seen
        last = self._watching.last
        raise NotSteady(
            f"round {last.round}, stage {last.stage}, chain {', '.join(last.chain)} of {last.desired}, suspects "
            f"{', '.join(name for name, _ in last.suspects) or 'none'}, nodes away "
            f"{', '.join(sorted(last.unready)) or 'none'} after {seconds:.0f} s"
        )
