"""Timeline: collects what the parts of a job do and when, and writes it to `timeline.jsonl` at each boundary.

A part records an interval by an append to a list. The thread of the round log writes them, so that no event loop waits
for it. A bounded number of intervals is kept between two boundaries, and a bounded number of bytes in the file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.status import RoundReport
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.observers import JobEvent
from rljob_runtime.protocols import TrainReport
from rljob_runtime.timeline.packing import PackedRows
from rljob_runtime.timeline.record import FILE, Interval, Record

log = logging.getLogger(__name__)

ROUNDS = "coordinator/rounds"
REWARDS = "coordinator/rewards"
MOVES = "coordinator/moves"
EVALUATION = "coordinator/evaluation "
"""Begins the row of each evaluation; its name follows."""
TRAINER = "trainer"
"""Rows beside those of machines."""

LONGEST_MESSAGE = 500
"""Characters of an event's message."""
MOST_INTERVALS = 4096
"""Intervals between two boundaries, without those that are packed; further ones are counted."""
MOST_ACTIVITIES = 1024
"""Intervals that show what replicas do, before they are packed together: so many, or a few for each replica."""
MOST_BYTES = 32 << 20
"""Size of the file at which its older half is deleted."""
WAITING = 64
"""Boundaries whose intervals wait to be written; older ones are dropped."""


class Timeline:
    """The intervals of one coordinator. Its methods are called in the event loop's thread; times are the loop's."""

    def __init__(self) -> None:
        self.round = 0
        """The last closed round."""
        self.on_event: Callable[[JobEvent], None] = lambda event: None
        """Called for each event. It must not block."""
        self._term = self._lost = 0
        self._found: list[Interval] = []
        self._activities = PackedRows(MOST_ACTIVITIES)
        self._open: dict[str, tuple[str, float]] = {}
        self._closed: deque[Record] = deque(maxlen=WAITING)

    def start(self, term: int) -> None:
        """Record the start of the coordinator."""
        self._term = term
        self.event("CoordinatorStarted", f"coordinator of term {term}", "coordinator/life")

    @contextmanager
    def during(self, row: str, name: str, **args: Any) -> Iterator[None]:
        """Record an interval from here to the end of the block, also if that raises."""
        since = _now()
        try:
            yield
        finally:
            self.span(row, name, since, **args)

    def span(self, row: str, name: str, since: float, **args: Any) -> None:
        """Record an interval from `since` until now."""
        self._add(Interval(row, name, since, _now(), args))

    def keep(self, intervals: Iterable[Interval]) -> None:
        """Record intervals whose times are known."""
        for one in intervals:
            self._add(one)

    def event(self, name: str, message: str, row: str, **args: Any) -> None:
        """Record an event as a moment, and pass it on."""
        event = JobEvent(name, self.round + 1, message[:LONGEST_MESSAGE])
        self._add(Interval(row, event.name, _now(), None, {"message": event.message, **args}))
        try:
            self.on_event(event)
        except Exception:  # an observer must not end the job
            log.exception("an observer failed over the event %s", name)

    def busy(self, row: str, name: str, held: bool) -> None:
        """Record an interval from the first call with `held` until the next one without."""
        if held and row not in self._open:
            self._open[row] = name, _now()
        elif not held and row in self._open:
            known, since = self._open.pop(row)
            self.span(row, known, since, round=self.round + 1)

    def activity(self, row: str, name: str | None) -> None:
        """Record what a row does from now on; None if it does nothing. Many changes are packed together."""
        known = self._open.get(row)
        if name == (known[0] if known is not None else None):
            return
        now = _now()
        if known is not None and known[1] < now:
            self._lost += not self._activities.add(Interval(row, *known, now, {"round": self.round + 1}))
        self._open.pop(row, None)
        if name is not None:
            self._open[row] = name, now

    def recorded(self) -> tuple[Interval, ...] | None:
        """Return the intervals since the last boundary, those that have not ended until now; None if some were lost."""
        if self._lost:
            return None
        now = _now()
        ended = *self._found, *self._activities.intervals()
        return *ended, *(Interval(row, name, since, now) for row, (name, since) in self._open.items())

    def close(self, round_: int | None = None) -> None:
        """End the intervals of a round; without one, those after the last round."""
        self.round = self.round if round_ is None else round_
        found, self._found = [*self._found, *self._activities.intervals()], []
        self._activities.clear()
        lost, self._lost = self._lost, 0
        if found:
            self._closed.append(Record(self.round, self._term, tuple(found), lost))

    def written(self, write: Callable[[Record], None]) -> None:
        """Call `write` for each closed round, in any thread. A round whose `write` raises stays."""
        while self._closed:
            write(self._closed[0])
            self._closed.popleft()

    def _add(self, interval: Interval) -> None:
        if len(self._found) < MOST_INTERVALS:
            self._found.append(interval)
        else:
            self._lost += 1


class TimelineLog:
    """A `round_log.Writer` that appends the closed rounds of a timeline to `timeline.jsonl` in `folder`.

    `to_epoch`: seconds from the loop's clock to the epoch."""

    def __init__(self, folder: Path, timeline: Timeline, to_epoch: float | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        self._timeline = timeline
        self._to_epoch = time.time() - time.monotonic() if to_epoch is None else to_epoch

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Append lines. Raises `OSError`."""
        self._timeline.written(self._append)

    def evaluated(self, result: EvaluationResult) -> None:
        """Do nothing: the intervals of an evaluation are closed with a round."""

    def close(self) -> None:
        """Append what is left."""
        self._timeline.written(self._append)

    def _append(self, record: Record) -> None:
        shifted = tuple(_shifted(one, self._to_epoch) for one in record.intervals)
        line = replace(record, intervals=shifted).to_json().encode() + b"\n"
        if self._path.exists() and self._path.stat().st_size + len(line) > MOST_BYTES:
            self._forget()
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                left = memoryview(line)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # A partial line would corrupt the next one.
                file.truncate(size)
                raise

    def _forget(self) -> None:
        """Delete the older half."""
        kept = self._path.read_bytes()[-MOST_BYTES // 2 :].partition(b"\n")[2]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(kept)
        fresh.replace(self._path)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _shifted(one: Interval, seconds: float) -> Interval:
    return replace(one, since=one.since + seconds, until=None if one.until is None else one.until + seconds)
