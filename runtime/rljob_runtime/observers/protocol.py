"""Observer: what an entry point of the group `rljob.observers` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


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


class Observer(Protocol):
    """Receives rounds in their order. It may block and raise; after an error it is closed and made again."""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a finished round, by name.

        A round comes again after the job has returned to an earlier checkpoint.
        """
        ...

    def close(self) -> None:
        """Send what is buffered. The job may go on in another process, which makes the observer again."""
        ...


ObserverFactory = Callable[[ObservedJob, Mapping[str, Any]], Observer]
"""Makes an observer of a job from its `config`. Raises `ObserverUnavailable`, or any error."""
