"""Sample source: where the samples and round reports of a job are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from rljob_runtime.evaluation.log import EVALUATIONS
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder

REPORTS = "rounds.jsonl"
Report = dict[str, Any]
"""A line of `rounds.jsonl` or `evaluations.jsonl`."""


class SampleSource(Protocol):
    """The samples of a job's rounds, or of one of its evaluations. Its methods raise `OSError`, `TornFile`, `NoAnswer`.

    The round of an evaluation is the one after which the weights were evaluated."""

    @property
    def name(self) -> str:
        """The job, for people."""
        ...

    def rounds(self) -> list[int]:
        """Return the rounds that have samples, rising."""
        ...

    def samples(self, number: int) -> Iterable[Sample]:
        """Return the samples of a round."""
        ...

    def reports(self) -> list[Report]:
        """Return the reports of all rounds."""
        ...

    def evaluations(self) -> list[Report]:
        """Return the results of all evaluations."""
        ...

    def of_evaluation(self, name: str) -> SampleSource:
        """Return the same with the samples of this evaluation."""
        ...


class FolderSource:
    """The folder of a run, or a copy of a job's volume. `evaluation`: the samples of this one."""

    def __init__(self, folder: Path, evaluation: str | None = None) -> None:
        self._folder = folder
        self._samples = SampleFolder(folder) if evaluation is None else EvaluationSampleFolder(folder, evaluation)

    @property
    def name(self) -> str:
        return self._folder.resolve().name

    def rounds(self) -> list[int]:
        return self._samples.rounds()

    def samples(self, number: int) -> Iterator[Sample]:
        return self._samples.read(number)

    def reports(self) -> list[Report]:
        return self._lines(REPORTS)

    def evaluations(self) -> list[Report]:
        return self._lines(EVALUATIONS)

    def of_evaluation(self, name: str) -> FolderSource:
        return FolderSource(self._folder, name)

    def _lines(self, name: str) -> list[Report]:
        path = self._folder / name
        return parse_reports(path.read_bytes()) if path.exists() else []


def parse_reports(raw: bytes) -> list[Report]:
    """Return the complete lines of a file of objects; a crash may have cut one."""
    found = []
    for line in raw.decode("utf-8", errors="replace").split("\n"):
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict):
            found.append(report)
    return found
