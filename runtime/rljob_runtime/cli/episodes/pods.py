"""Pod episodes: the episodes of a job in a cluster, which its coordinator reads from the store that it holds."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_runtime.cli.cluster import NoAnswer
from rljob_runtime.cli.episodes.source import episodes_of
from rljob_runtime.cli.episodes.stored import StoredAttempt, attempts_of
from rljob_runtime.cli.pod_files import PodText, pod_text
from rljob_runtime.cli.samples.pods import PodSource
from rljob_runtime.coordinator.samples.attempt_lines import row_of
from rljob_runtime.coordinator.samples.attempt_rows import START, Place, Row, Wanted
from rljob_runtime.samples import Sample
from rljob_runtime.samples.episode import SampleEpisode

NO_ROUTE = "its coordinator is of an earlier version, which serves no episodes; read a copy of its volume instead"


class PodEpisodes:
    """An `EpisodeSource` of a coordinator's pod."""

    def __init__(self, name: str, text: PodText) -> None:
        self._name = name
        self._text = text
        self._samples = PodSource(name, text)

    @classmethod
    def of(cls, job: str, namespace: str | None) -> PodEpisodes:
        """Find the pod of a job: see `pod_text`."""
        return cls(job, pod_text(job, namespace, NO_ROUTE))

    @property
    def name(self) -> str:
        return self._name

    def attempts(self, wanted: Wanted) -> Iterator[StoredAttempt]:
        return attempts_of(self._rows(wanted))

    def _rows(self, wanted: Wanted) -> Iterator[Row]:
        of = "all" if wanted.step is None else f"round-{wanted.step}"
        of = of if wanted.attempt is None else f"attempt-{wanted.attempt}"
        path, place = f"episodes/{'tokens' if wanted.tokens else 'sizes'}/{of}", START
        while lines := self._text(f"{path}/{place.attempt}/{place.turn}"):
            for line in lines.splitlines():
                row = _row(line)
                place = Place.of(row)
                yield row

    def texts(self, step: int | None) -> dict[int, SampleEpisode]:
        return episodes_of(self._every_sample() if step is None else self._of_round(step))

    def _of_round(self, step: int) -> Iterator[Sample]:
        if step in self._samples.rounds():
            yield from self._samples.samples(step)

    def _every_sample(self) -> Iterator[Sample]:
        evaluated = sorted({str(one["name"]) for one in self._samples.evaluations() if "name" in one})
        for source in (self._samples, *map(self._samples.of_evaluation, evaluated)):
            for number in source.rounds():
                yield from source.samples(number)


def _row(line: str) -> Row:
    try:
        return row_of(line)
    except ValueError as error:
        raise NoAnswer(f"the coordinator's answer: {error}") from None
