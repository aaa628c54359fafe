"""Episode source: where the attempts of a job, and the texts of its samples, are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from rljob_runtime.cli.episodes.stored import StoredAttempt, stored_attempts
from rljob_runtime.coordinator.samples.attempt_rows import Wanted
from rljob_runtime.samples import Sample, SampleFolder, all_folders
from rljob_runtime.samples.episode import SampleEpisode


class EpisodeSource(Protocol):
    """The episodes of a job. Its methods raise `Unusable`, `NoHistory`, `OSError`, `TornFile` and `NoAnswer`."""

    @property
    def name(self) -> str:
        """The job, for people."""
        ...

    def attempts(self, wanted: Wanted) -> Iterator[StoredAttempt]:
        """Yield these attempts in the order in which they began."""
        ...

    def texts(self, step: int | None) -> dict[int, SampleEpisode]:
        """Return the episodes of samples, by the number of their attempt.

        `step`: of the samples of this round only; otherwise of all, and of evaluations."""
        ...


class FolderEpisodes:
    """The folder of a run, a copy of a job's volume, or a store's file. The run may go on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return (self._path if self._path.is_dir() else self._path.parent).resolve().name

    def attempts(self, wanted: Wanted) -> Iterator[StoredAttempt]:
        return stored_attempts(self._path, wanted)

    def texts(self, step: int | None) -> dict[int, SampleEpisode]:
        if not self._path.is_dir():
            return {}
        if step is None:
            folders = all_folders(self._path)
            return episodes_of(one for folder in folders for number in folder.rounds() for one in folder.read(number))
        samples = SampleFolder(self._path)
        return episodes_of(samples.read(step)) if step in samples.rounds() else {}


def episodes_of(samples: Iterable[Sample]) -> dict[int, SampleEpisode]:
    """Return the episodes of samples, by the number of their attempt."""
    return {one.episode.attempt: one.episode for one in samples if one.episode is not None}
