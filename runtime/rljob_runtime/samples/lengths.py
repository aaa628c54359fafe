"""Length files: how long the prompts and responses of each round are, in `lengths/` beside `rounds.jsonl`.

A line is a prompt in PolyTrace's format of lengths, with `kept` beside it, so that a job's own lengths are a trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.samples.round_files import RoundFiles
from rljob_runtime.workloads import TraceError
from rljob_runtime.workloads.trace import FILTER_FILE, holds_step, lengths_file

FOLDER = "lengths"


@dataclass(frozen=True)
class PromptLengths:
    """A prompt of a round: its tokens, those of each complete response, and whether its group was trained on."""

    prompt: int
    responses: tuple[int, ...]
    kept: bool


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    rounds: int
    prompts: int
    responses: int


class LengthFolder(RoundFiles):
    """The lengths below a job's folder."""

    def __init__(self, job: Path) -> None:
        super().__init__(job / FOLDER)

    def write(self, number: int, prompts: Iterable[PromptLengths], keep: int) -> None:
        """Write a round's lengths, and keep the newest `keep` files: see `write_lines`."""
        rows = (_row(number, place, prompt) for place, prompt in enumerate(prompts))
        self.write_lines(number, map(json.dumps, rows), keep)

    def read(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a round. Raises `TraceError` for a row that is none, and `OSError`."""
        path = self.file(number)
        for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                yield {**row, "kept": bool(row["kept"]), "n_sampling": len(row["output"])}
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{path}:{place}: not a row of lengths: {error!r}") from None


def export(job: Path, out: Path) -> Exported:
    """Write the lengths of a job's folder as a trace into the folder `out`.

    Raises `TraceError` if the job has none or `out` holds a trace, and `OSError`."""
    source = LengthFolder(job)
    if not job.is_dir():
        raise TraceError(f"{job} is no folder; the folder of a run (--workdir), or a copy of a job's volume, is right")
    rounds = [(number, rows) for number in source.rounds() if (rows := list(source.read(number)))]
    if not rounds:
        raise TraceError(f"{job} has no lengths: no round has ended, or the run is of an earlier version")
    if out.is_dir() and holds_step(out):
        raise TraceError(f"{out} holds a trace already; a new folder would be right")
    out.mkdir(parents=True, exist_ok=True)
    filters: list[dict[str, Any]] = []
    for number, rows in rounds:
        _write(out / lengths_file(number), ({name: row[name] for name in row if name != "kept"} for row in rows))
        kept = [place for place, row in enumerate(rows) if row["kept"]]
        filters.append({"workload_step": number, "prompt_count": len(rows), "kept_prompt_indices": kept})
    if any(len(row["kept_prompt_indices"]) < row["prompt_count"] for row in filters):
        _write(out / FILTER_FILE, filters)
    found = [row for _, rows in rounds for row in rows]
    return Exported(len(rounds), len(found), sum(row["n_sampling"] for row in found))


def _row(number: int, place: int, prompt: PromptLengths) -> dict[str, Any]:
    return {
        "step": number,
        "dp_rank": 0,
        "local_index": place,
        "input": prompt.prompt,
        "output": list(prompt.responses),
        "n_sampling": len(prompt.responses),
        "kept": prompt.kept,
    }


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
