"""Pod samples: the samples of a job in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from rljob_runtime.cli.cluster import NoAnswer
from rljob_runtime.cli.pod_files import PodText, pieces, pod_text
from rljob_runtime.cli.samples.source import Report, parse_reports
from rljob_runtime.samples import Sample


class PodSource:
    """A `SampleSource` of a coordinator's pod. `evaluation`: the samples of this one."""

    def __init__(self, name: str, text: PodText, evaluation: str | None = None) -> None:
        self._name = name
        self._text = text
        self._path = "samples" if evaluation is None else f"evaluation-samples/{quote(evaluation, safe='')}"

    @classmethod
    def of(cls, job: str, namespace: str | None, evaluation: str | None = None) -> PodSource:
        """Find the pod of a job: see `pod_text`."""
        return cls(job, pod_text(job, namespace), evaluation)

    @property
    def name(self) -> str:
        return self._name

    def rounds(self) -> list[int]:
        return [int(number) for number in self._text(self._path).split()]

    def samples(self, number: int) -> Iterator[Sample]:
        for text in pieces(self._text, f"{self._path}/{number}"):
            for line in text.split("\n"):
                if line:
                    yield _sample(number, line)

    def reports(self) -> list[Report]:
        return self._lines("rounds")

    def evaluations(self) -> list[Report]:
        return self._lines("evaluations")

    def of_evaluation(self, name: str) -> PodSource:
        return PodSource(self._name, self._text, name)

    def _lines(self, name: str) -> list[Report]:
        return parse_reports("".join(pieces(self._text, name)).encode())


def _sample(number: int, line: str) -> Sample:
    try:
        return Sample.from_json(line)
    except ValueError as error:
        raise NoAnswer(f"round {number}: {error}") from None
