"""Sample files: a JSONL file for each round in `samples/`, beside `rounds.jsonl`.

Those of evaluations are in `evaluation-samples/NAME/`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rljob_runtime.samples.record import Sample
from rljob_runtime.samples.round_files import RoundFiles

FOLDER = "samples"
EVALUATION_FOLDER = "evaluation-samples"


class TornFile(ValueError):
    """A line of a file is no sample, and it is not the last one. The message names file, line and fault."""


class SampleFolder(RoundFiles):
    """The samples below a job's folder."""

    def __init__(self, job: Path, folder: str = FOLDER) -> None:
        super().__init__(job / folder)

    def read(self, number: int) -> Iterator[Sample]:
        """Yield a round's samples.

        An incomplete last line is skipped. Raises `TornFile` for another bad line, and `OSError`.
        """
        path = self.file(number)
        lines = path.read_bytes().split(b"\n")
        for place, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                yield Sample.from_json(line.decode("utf-8"))
            except ValueError as error:
                if place == len(lines):  # a complete last line has an end, so that the last piece is empty
                    return
                raise TornFile(f"{path}: line {place}: {error}") from None

    def write(self, number: int, samples: Iterable[Sample], keep: int) -> None:
        """Write a round's samples, and keep the newest `keep` files: see `write_lines`."""
        self.write_lines(number, (sample.to_json() for sample in samples), keep)


class EvaluationSampleFolder(SampleFolder):
    """The samples of one evaluation below a job's folder: a file for each result, by the round of its weights."""

    def __init__(self, job: Path, name: str) -> None:
        super().__init__(job, f"{EVALUATION_FOLDER}/{name}")

    def oldest(self, rounds: Sequence[int], keep: int) -> int:
        """Keep the newest `keep` files: most rounds have none."""
        return rounds[-keep:][0]


def all_folders(job: Path) -> list[SampleFolder]:
    """Return the samples of training, and those of each evaluation that has any. Raises `OSError`."""
    return [SampleFolder(job), *_of_evaluations(job).values()]


def _of_evaluations(job: Path) -> dict[str, EvaluationSampleFolder]:
    folder = job / EVALUATION_FOLDER
    names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.exists() else []
    return {name: EvaluationSampleFolder(job, name) for name in names}


def delete_abandoned(job: Path, results: Mapping[str, Collection[int]], first: int) -> int:
    """Delete the files of evaluations without a result, and return their number. Raises `OSError`.

    `results`: the rounds whose weights have a result, by evaluation. `first`: the first round that the store knows.
    Where a store was lost, it cannot tell of earlier rounds, so their files stay.
    """
    deleted = 0
    for name, files in _of_evaluations(job).items():
        for number in files.rounds():
            if number >= first and number not in results.get(name, ()):
                files.file(number).unlink(missing_ok=True)
                deleted += 1
    return deleted
