"""Trace: a run as a timeline for Perfetto (ui.perfetto.dev) and chrome://tracing.

It shows generation, waiting, training, weight transfers and faults.
"""

from __future__ import annotations

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
from rljob_runtime.timeline.trace_events import TraceEvents


class Timeline:
    """Observer that records a trace.

    A machine is a process of the trace, its processes are threads; responses overlap, so they are asynchronous spans.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._trace = TraceEvents()
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
        self._trace.write(file)

    def _span(self, path: str, name: str, since: float, **args: Any) -> None:
        self._trace.span(path, name, since, self._now(), **args)

    def _overlapping(self, path: str, name: str, since: float, **args: Any) -> None:
        self._trace.overlapping(path, name, since, self._now(), **args)

    def _instant(self, path: str, name: str) -> None:
        self._trace.instant(path, name, self._now())

    def _count(self, replica: str, change: int) -> None:
        self._held[replica] += change
        self._trace.count(replica, f"{replica} responses", self._now(), held=self._held[replica])

    def _report(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            self._instant("coordinator", stage)
