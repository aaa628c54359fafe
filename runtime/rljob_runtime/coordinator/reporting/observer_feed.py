"""Observer feed: passes rounds to the observers that the spec names, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rljob_api import RLJob
from rljob_api.observers import ObserverSpec
from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.round_log import RoundJournal
from rljob_runtime.observers.discovery import factory
from rljob_runtime.observers.protocol import ObservedJob, Observer, ObserverFactory
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport

OBSERVER_FAILS = "ObserverFails"
"""The reason of the warning about an observer."""
CURE = "Training continues. Check the observer's config and credentials, and that its server answers."


class ObserverWriter:
    """Passes rounds to an observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Pass a round. Raises what the observer raises."""
        self._observer.round(report.round, round_metrics(report, trained))

    def close(self) -> None:
        """Close the observer."""
        self._observer.close()


def observer_journals(job: RLJob, folder: Path, find: Callable[[str], ObserverFactory] = factory) -> list[RoundJournal]:
    """Return a journal for each observer of the spec.

    An observer is made in the journal's thread, so nothing waits for its import or its server.
    """
    observed = ObservedJob(job.name, job.metadata.namespace or "", job.metadata.uid or "", job.spec.to_dict(), folder)

    def journal(spec: ObserverSpec) -> RoundJournal:
        def make() -> ObserverWriter:
            return ObserverWriter(find(spec.name)(observed, spec.config))

        return RoundJournal({f"observer {spec.name}": make}, reason=OBSERVER_FAILS, cure=CURE)

    return [journal(spec) for spec in job.spec.observers]
