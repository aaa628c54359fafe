"""Campaign: one fault after the other, each after the job has recovered from the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from random import Random

from .faults.injector import Injector
from .faults.pods import Injected, NotPossible
from .job_watch import JobWatch
from .observation import Observation
from .recovery import SETTLED, Recovery
from .rows import ROWS, Row
from .schedule import first_possible
from .table import Outcome
from .timeline import Starts, Timeline

STEADY_SECONDS = 300.0
"""Limit of the wait for a healthy job before a fault."""
GENERATING_SECONDS = 15.0
"""Limit of the wait for lost machines to generate after recovery. There may be nothing to generate before the next
update, and the status reports it some seconds later."""


class NotSteady(Exception):
    """The job is not healthy, so effects of a fault could not be distinguished."""


class Campaign:
    """Faults on one job. `on_outcome` receives each outcome. `starts`: first starts of the machines.

    `settled`: updates without trouble before a fault, and after its recovery.
    """

    def __init__(
        self,
        watch: JobWatch,
        injector: Injector,
        seed: int,
        on_outcome: Callable[[Outcome], None],
        settled: int = SETTLED,
    ) -> None:
        self._watch = watch
        self._injector = injector
        self._rng = Random(seed)
        self._on_outcome = on_outcome
        self._settled = settled
        self.starts = Starts()

    def run(self, rows: Iterable[str]) -> list[Outcome]:
        """Inject a fault of each of these rows, in order. Rows without a possible victim wait. Raises `NotSteady`."""
        outcomes: list[Outcome] = []
        due = list(rows)
        while due:
            outcomes.append(self._fault(due))
            due.remove(outcomes[-1].row)
            self._on_outcome(outcomes[-1])
        return outcomes

    def _fault(self, due: Sequence[str]) -> Outcome:
        end = time.time() + STEADY_SECONDS
        why = "there is no possible victim"
        while True:
            seen = self.steady(STEADY_SECONDS)
            row = ROWS[first_possible(due, seen)]
            victims = row.victims(seen, self._rng)
            if victims:
                try:
                    injected = self._injector.inject(row.name, victims, seen)
                except NotPossible as error:
                    why = str(error)
                else:
                    return self._watched(row, victims, seen, injected)
            if time.time() >= end:
                return Outcome(row.name, "", None, None, None, (f"not possible: {why}",))
            self._watch.next(2.0)

    def _watched(self, row: Row, victims: tuple[str, ...], before: Observation, injected: Injected) -> Outcome:
        """Watch the recovery from a fault, and take the fault back.

        The outcome is wrong if the fault cannot be taken back. The fault counts nevertheless, because it was made.
        """
        recovery = Recovery(row, victims, before, injected.at, self._settled)
        again, wrong = row.name == "replica-again", list[str]()
        loss = Timeline(injected.at, recovery.machines, before) if row.watches == "nodes" else None
        try:
            while not recovery.observe(self._next(injected.at)) and time.time() < injected.at + row.bound:
                if row.lasts is not None and recovery.taken_back is None and time.time() > injected.at + row.lasts:
                    wrong += _undone(injected)
                    recovery.taken_back = time.time()
                now = self._watch.last
                if loss is not None:
                    loss.observe(now)
                if again and recovery.acted is not None and not now.troubled(victims[0]):
                    again = False
                    if now.incarnation(victims[0]) > before.incarnation(victims[0]):
                        continue  # It failed before within the window, so this failure already replaced it.
                    # The first failure restarts in place; the second within the window replaces the machine.
                    try:
                        injected = self._injector.inject(row.name, victims, now)
                    except NotPossible as error:
                        wrong.append(f"the second failure is not possible: {error}")
                        break
                    recovery = Recovery(row, victims, now, injected.at, self._settled)
            recovery.time_out()
        finally:
            wrong += _undone(injected)
        if loss is not None:
            self._follow(loss)
        if recovery.back is not None:
            wrong += _unproved(injected)
        return Outcome(
            row.name,
            ", ".join(victims),
            recovery.detected,
            recovery.acted,
            recovery.back,
            tuple(dict.fromkeys([*recovery.wrong, *wrong])),
            loss.moments if loss is not None else {},
        )

    def _follow(self, loss: Timeline) -> None:
        """Wait for the first tokens of the lost machines, which may come after the recovery."""
        end = time.time() + GENERATING_SECONDS
        while "generating" not in loss.moments and time.time() < end:
            loss.observe(self._next(loss.at))

    def _next(self, at: float) -> Observation:
        """Return the next change, or the last observation if nothing changes: time passes without changes too."""
        return self._watch.next(0.25) or self._watch.last

    def steady(self, seconds: float) -> Observation:
        """Wait until the job is healthy, updates proceed, and Kubernetes evicts no pod. Raises `NotSteady`.

        After a pause Kubernetes may hold a node to be away until its kubelet reports.
        """
        end = time.time() + seconds
        since: int | None = None
        while time.time() < end:
            seen = self._watch.next(1.0) or self._watch.last
            self.starts.observe(seen)
            if seen.failed or seen.complete:
                raise NotSteady(seen.failed or "the job is complete")
            if not seen.healthy or seen.unready:
                since = None
            elif since is None or seen.round < since:
                since = seen.round
            elif seen.round >= since + self._settled:
                return seen
        last = self._watch.last
        raise NotSteady(
            f"round {last.round}, stage {last.stage}, chain {', '.join(last.chain)} of {last.desired}, suspects "
            f"{', '.join(name for name, _ in last.suspects) or 'none'}, nodes away "
            f"{', '.join(sorted(last.unready)) or 'none'} after {seconds:.0f} s"
        )


def _undone(injected: Injected) -> list[str]:
    """Take a fault back; return why it could not be."""
    try:
        injected.undo()
    except NotPossible as error:
        return [f"not taken back: {error}"]
    return []


def _unproved(injected: Injected) -> list[str]:
    """Return what is not shown of a fault."""
    try:
        return injected.unproved()
    except NotPossible as error:
        return [f"not shown: {error}"]
