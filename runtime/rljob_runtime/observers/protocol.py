"""Observer: what an entry point of the group `rljob.observers` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class ObserverUnavailable(Exception):
    """An observer cannot be made. The message says what to install or set."""


@dataclass(frozen=True)
class ObservedJob:
    """The job that is observed.

    `spec` has the names of the manifest. `folder` is on the job's volume and outlives the coordinator.
    """

    name: str
    namespace: str
    uid: str
    spec: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class JobEvent:
    """Something that happened in a job. `round`: the one under way. `name`: a word as `MachineLost`."""

    name: str
    round: int
    message: str


class Observer(Protocol):
    """Receives rounds in their order. It may block and raise; after an error it is closed and made again.

    It may have further methods, which are called if they are there (`ObservesSamples`, `ObservesEvaluations`,
    `ObservesEvents`).
    """

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Receive metrics by name: of a finished round, or of an evaluation of its weights (`evaluation/…`).

        A round comes again after the job has returned to an earlier checkpoint. Weights before the first round are
        those of round 0.
        """
        ...

    def close(self) -> None:
        """Send what is buffered. The job may go on in another process, which makes the observer again."""
        ...


@runtime_checkable
class ObservesSamples(Protocol):
    """An observer of samples."""

    def samples(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Receive the samples of a round that has closed, as `rljob samples --json` prints them."""
        ...


@runtime_checkable
class ObservesEvaluations(Protocol):
    """An observer of evaluations."""

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """Receive an evaluation that has ended, as a line of `evaluations.jsonl`, after its numbers.

        It may come again after a restart.
        """
        ...


@runtime_checkable
class ObservesEvents(Protocol):
    """An observer of events."""

    def event(self, event: JobEvent) -> None:
        """Receive an event."""
        ...


ObserverFactory = Callable[[ObservedJob, Mapping[str, Any]], Observer]
"""Makes an observer of a job from its `config`. Raises `ObserverUnavailable`, or any error."""
