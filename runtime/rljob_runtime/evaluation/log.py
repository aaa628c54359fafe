"""Evaluation log: a line for each evaluation in `evaluations.jsonl`, beside `rounds.jsonl`.

After a rewind, the lines of abandoned rounds are deleted when the first evaluation ends again.

All calls block: the volume may be full or may not respond."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rljob_runtime.evaluation.history import stays
from rljob_runtime.evaluation.result import EvaluationResult

EVALUATIONS = "evaluations.jsonl"


class EvaluationLog:
    """Appends evaluations to `evaluations.jsonl` in `folder`.

    Every call may raise `OSError`; then the file has complete lines only.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / EVALUATIONS

    def append(self, result: EvaluationResult) -> None:
        """Write an evaluation as the last line. It replaces one of the same name and round, and later rounds."""
        self._keep(lambda one: stays(one, result))
        self._write_line(result)

    def _write_line(self, result: EvaluationResult) -> None:
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                left = memoryview(f"{result.to_json()}\n".encode())
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # A partial line would corrupt the next one.
                file.truncate(size)
                raise

    def _keep(self, keep: Callable[[EvaluationResult], bool]) -> None:
        """Delete the other lines, and incomplete ones. An equal file is not written."""
        if not self._path.is_file():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines(keepends=True)
        kept = "".join(line for line in lines if (one := _read(line)) is not None and keep(one))
        if kept != text:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(kept, encoding="utf-8")
            fresh.replace(self._path)


def read_evaluations(folder: Path) -> tuple[EvaluationResult, ...]:
    """Return the evaluations in a folder by round, and then as they ended; none without a file.

    Lines that are not complete are left out: one may be being written.
    """
    path = folder / EVALUATIONS
    if not path.is_file():
        return ()
    return in_order(map(_read, path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)))


def in_order(results: Iterable[EvaluationResult | None]) -> tuple[EvaluationResult, ...]:
    """Return the results by round, without None."""
    return tuple(sorted((one for one in results if one is not None), key=lambda one: one.round))


def _read(line: str) -> EvaluationResult | None:
    """Return the evaluation of a line; None for an incomplete one, as after a crash."""
    if not line.endswith("\n"):
        return None
    try:
        return EvaluationResult.from_json(line)
    except ValueError:
        return None
