"""Trace events: a timeline in Chrome's trace-event JSON, which Perfetto (ui.perfetto.dev) reads.

A row is `machine/process`: the machine is a process of the trace, and its processes are threads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

MICROSECONDS = 1e6


class TraceEvents:
    """Events of a trace. Times are in seconds from a common start."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._tracks: dict[tuple[str, str], tuple[int, int]] = {}
        self._ids = itertools.count(1)

    def span(self, row: str, name: str, since: float, until: float, **args: Any) -> None:
        """Add a span. Spans of a row must not overlap, except if one contains the other."""
        self._add("X", row, name, since, dur=round((until - since) * MICROSECONDS, 3), args=args)

    def overlapping(self, row: str, name: str, since: float, until: float, **args: Any) -> None:
        """Add a span that may overlap others of its row."""
        number = next(self._ids)
        self._add("b", row, name, since, cat=row, id=number, args=args)
        self._add("e", row, name, until, cat=row, id=number)

    def instant(self, row: str, name: str, at: float, **args: Any) -> None:
        """Add a moment."""
        self._add("i", row, name, at, s="t", **({"args": args} if args else {}))

    def count(self, row: str, name: str, at: float, **values: float) -> None:
        """Add values of a counter from `at` on."""
        self._add("C", row, name, at, args=values)

    def document(self) -> dict[str, Any]:
        """Return the complete trace."""
        names = [
            {"ph": "M", "name": kind, "pid": place[0], "tid": place[1], "args": {"name": name}}
            for row, place in self._tracks.items()
            for kind, name in zip(("process_name", "thread_name"), row, strict=True)
        ]
        return {"displayTimeUnit": "ms", "traceEvents": [*names, *self._events]}

    def write(self, file: Path) -> None:
        """Write the JSON file. Raises `OSError`."""
        file.write_text(json.dumps(self.document(), separators=(",", ":")) + "\n", encoding="utf-8")

    def _place(self, row: str) -> tuple[int, int]:
        """Return (pid, tid) of a row."""
        machine, _, process = row.partition("/")
        track = machine, process or machine
        if track not in self._tracks:
            pids = {name: pid for (name, _), (pid, _) in self._tracks.items()}
            pid = pids.get(machine, len(pids) + 1)
            self._tracks[track] = pid, len(self._tracks) + 1
        return self._tracks[track]

    def _add(self, phase: str, row: str, name: str, at: float, **fields: Any) -> None:
        pid, tid = self._place(row)
        event = {"ph": phase, "name": name, "ts": round(at * MICROSECONDS, 3), "pid": pid, "tid": tid}
        self._events.append({**event, **fields})
