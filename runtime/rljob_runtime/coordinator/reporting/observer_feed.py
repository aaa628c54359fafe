"""Observer feed: passes rounds, samples, evaluations and events to the observers that the spec names.

Each observer has a thread of its own, which also makes what is passed: nothing waits for an import or a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rljob_api import RLJob
from rljob_api.spec.observers import ObserverSpec
from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.round_log import Entry, RoundJournal, Writer
from rljob_runtime.evaluation import EvaluationResult, evaluation_metrics
from rljob_runtime.observers.discovery import factory
from rljob_runtime.observers.protocol import (
    JobEvent,
    ObservedJob,
    Observer,
    ObserverFactory,
    ObservesEvaluations,
    ObservesEvents,
    ObservesSamples,
)
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.samples import Sample

OBSERVER_FAILS = "ObserverFails"
"""The reason of the warning about an observer."""
CURE = "Training continues. Check the observer's config and credentials, and that its server answers."


class ObserverWriter:
    """Passes to an observer what it has a method for."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Pass a round. Raises what the observer raises."""
        self._observer.round(report.round, round_metrics(report, trained))

    def evaluated(self, result: EvaluationResult) -> None:
        """Pass an evaluation. Raises what the observer raises."""
        self._observer.round(result.round, evaluation_metrics(result))
        if isinstance(self._observer, ObservesEvaluations):
            self._observer.evaluated(result.to_dict())

    def samples(self, number: int, samples: Sequence[Sample]) -> None:
        """Pass the samples of a round. Raises what the observer raises."""
        if isinstance(self._observer, ObservesSamples):
            self._observer.samples(number, [sample.to_dict() for sample in samples])

    def event(self, event: JobEvent) -> None:
        """Pass an event. Raises what the observer raises."""
        if isinstance(self._observer, ObservesEvents):
            self._observer.event(event)

    def close(self) -> None:
        """Close the observer."""
        self._observer.close()


@dataclass(frozen=True)
class ObserverFeed:
    """Passes samples and events to all observers of a job. No method blocks or raises.

    `journals`: those of `observer_journals`, which get rounds and evaluations as other journals do."""

    journals: Sequence[RoundJournal]

    def samples(self, number: int, samples: Sequence[Sample]) -> None:
        """Pass the samples of a round that has closed."""
        self._put("samples", f"the samples of round {number}", lambda writer: writer.samples(number, samples))

    def event(self, event: JobEvent) -> None:
        """Pass an event."""
        self._put("events", f"the event {event.name}", lambda writer: writer.event(event))

    def _put(self, kind: str, name: str, write: Callable[[ObserverWriter], None]) -> None:
        for journal in self.journals:
            journal.put(Entry(kind, name, cast(Callable[[Writer], None], write)))


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
