"""Trace: a run as a timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's trace-event JSON.

It shows generation, waiting, training, weight transfers and faults.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_runtime.simulator.core.events import (
    Aborted,
    Brought,
    Checkpointed,
    Contributed,
    CoordinatorEnded,
    CoordinatorStarted,
    Event,
    FaultEnded,
    Generated,
    LaidOut,
    Loaded,
    MadeRoom,
    ProcessEnded,
    ProcessStarted,
    Published,
    Received,
    Reported,
    Restored,
    Scored,
    Submitted,
    Summed,
    Trained,
)

MICROSECONDS = 1e6


class Timeline:
    """Observer that records a trace.

    A machine is a process of the trace, its processes are threads; responses overlap, so they are asynchronous spans.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._events: list[dict[str, Any]] = []
        self._tracks: dict[tuple[str, str], tuple[int, int]] = {}
        self._ids = itertools.count(1)
        self._held: Counter[str] = Counter()
        self._stage = ""

    def __call__(self, event: Event) -> None:
        """Record one event."""
        match event:
            case Submitted(replica):
                self._count(replica, 1)
            case Generated(replica, key, attempt, version, tokens, since):
                self._count(replica, -1)
                self._overlapping(
                    replica, f"response {key}", since, attempt=attempt, version=version, tokens=tokens, end="whole"
                )
            case Aborted(replica, key, attempt, tokens, since):
                self._count(replica, -1)
                self._overlapping(replica, f"response {key}", since, attempt=attempt, tokens=tokens, end="aborted")
            case MadeRoom(replica):
                self._instant(replica, "make room")
            case LaidOut(replica, tensor_parallel, since):
                self._span(replica, f"lay out with TP {tensor_parallel}", since)
            case Loaded(replica, version, _, since):
                self._span(replica, f"load version {version}", since)
            case Received(machine, version, since):
                self._overlapping(f"{machine}/relay", f"version {version}", since)
            case Trained(step, groups, _, _, since):
                self._span("trainer", f"train step {step}", since, groups=len(groups))
            case Contributed(step, prompts, since):
                self._span("trainer", f"gradients of step {step}", since, groups=len(prompts))
            case Summed(machine, step, prompts, _, since):
                self._span(f"{machine}/worker", f"gradients of step {step}", since, groups=len(prompts))
            case Brought(machine, step, groups, since):
                self._span(f"{machine}/worker", f"bring the sums of step {step}", since, groups=groups)
            case Published(version, step, _, since):
                self._span("trainer", f"publish version {version}", since, step=step)
            case Checkpointed(step, since):
                self._span("trainer", f"checkpoint {step}", since)
            case Restored(step):
                self._instant("trainer", f"restored step {step}")
            case Scored(prompt, reward, since):
                self._overlapping("coordinator/rewards", f"score {prompt}", since, reward=reward)
            case ProcessStarted(process):
                self._instant(process, "started")
            case ProcessEnded(process):
                self._instant(process, "ended")
                self._count(process, -self._held[process])
            case Reported(status):
                self._report(f"{status.stage}, round {status.round}")
            case CoordinatorStarted(term):
                self._instant("coordinator", f"term {term}")
            case CoordinatorEnded(term, why, since):
                self._span("coordinator/life", f"term {term}", since, end=why)
            case FaultEnded(fault, target, since):
                self._overlapping(f"faults/{target}", fault, since)
            case _:
                pass

    def write(self, file: Path) -> None:
        """Write the JSON file. Raises `OSError`."""
        names = [
            self._named(kind, name, place)
            for path, place in self._tracks.items()
            for kind, name in zip(("process_name", "thread_name"), path, strict=True)
        ]
        trace = {"displayTimeUnit": "ms", "traceEvents": [*names, *self._events]}
        file.write_text(json.dumps(trace, separators=(",", ":")) + "\n", encoding="utf-8")

    # --- the format ---

    def _place(self, path: str) -> tuple[int, int]:
        """Return (pid, tid) of `machine/process`."""
        machine, _, process = path.partition("/")
        track = machine, process or machine
        if track not in self._tracks:
            pids = {name: pid for (name, _), (pid, _) in self._tracks.items()}
            pid = pids.get(machine, len(pids) + 1)
            self._tracks[track] = pid, len(self._tracks) + 1
        return self._tracks[track]

    @staticmethod
    def _named(kind: str, name: str, place: tuple[int, int]) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": place[0], "tid": place[1], "args": {"name": name}}

    def _add(self, phase: str, path: str, name: str, at: float, **fields: Any) -> None:
        pid, tid = self._place(path)
        event = {"ph": phase, "name": name, "ts": round(at * MICROSECONDS, 3), "pid": pid, "tid": tid}
        self._events.append({**event, **fields})

    def _span(self, path: str, name: str, since: float, **args: Any) -> None:
        seconds = self._now() - since
        self._add("X", path, name, since, dur=round(seconds * MICROSECONDS, 3), args=args)

    def _overlapping(self, path: str, name: str, since: float, **args: Any) -> None:
        number = next(self._ids)
        self._add("b", path, name, since, cat=path, id=number, args=args)
        self._add("e", path, name, self._now(), cat=path, id=number)

    def _instant(self, path: str, name: str) -> None:
        self._add("i", path, name, self._now(), s="t")

    def _count(self, replica: str, change: int) -> None:
        self._held[replica] += change
        self._add("C", replica, f"{replica} responses", self._now(), args={"held": self._held[replica]})

    def _report(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            self._instant("coordinator", stage)
