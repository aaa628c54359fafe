"""Every closed round as a line of JSON and as TensorBoard scalars, for people and plots.

Both are on the job's volume, which may be full or not answer. A thread of their own writes them, so no round waits and
no job ends for them: what cannot be written is counted and told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Protocol

from rljob_api.status import RoundReport, StatusWarning
from rljob_runtime.protocols import TrainReport

ROUNDS_NOT_LOGGED = "RoundsNotLogged"
"""The reason of a problem that an observer tells of."""

log = logging.getLogger(__name__)

QUEUED_ROUNDS = 256
"""Rounds that wait to be written, at most."""
CLOSE_SECONDS = 10.0


class Writer(Protocol):
    """Where rounds go. It may block and raise."""

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Write a round."""
        ...

    def close(self) -> None:
        """Write what is buffered."""
        ...


class RoundLog:
    """Appends to `rounds.jsonl` in `folder`, a line a round. Where the job went back, the lines of the rounds that were
    undone go as the first of them is played again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "rounds.jsonl"
        self._last: int | None = None
        """The last round in the file, where that is known."""

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Raises `OSError`; then nothing of the line is there."""
        line = json.dumps({**report.to_dict(), "training": asdict(trained)}) + "\n"
        last, self._last = self._last, None
        if last is None or last >= report.round:
            self._undo(report.round)
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                left = memoryview(line.encode())
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # Half a line would spoil the next one.
                file.truncate(size)
                raise
        self._last = report.round

    def close(self) -> None:
        """Nothing is buffered."""

    def _undo(self, first: int) -> None:
        """Only whole lines of rounds before `first` stay."""
        if not self._path.is_file():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        kept = "".join(f"{line}\n" for line in text.splitlines() if _round_of(line) < first)
        if kept != text:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(kept, encoding="utf-8")
            fresh.replace(self._path)


def _round_of(line: str) -> float:
    """The round that a line is of; above all others where it is not whole, as after a crash."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return inf


class TensorBoard:
    """Writes the round's figures as scalars below `folder`, the round being the step. One that has failed once is of no
    use any more."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer as Scalars

        try:
            self._writer = Scalars(str(folder))
        except BaseException:
            # A disk that is full takes names still: one for each try would stay.
            for file in folder.glob("events.out.tfevents.*"):
                if file.stat().st_size == 0:
                    file.unlink()
            raise

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Raises what writing raises."""
        figures = {
            **{f"round/{name}": value for name, value in report.model_dump(exclude={"round"}).items()},
            **{f"train/{name}": value for name, value in asdict(trained).items() if name != "step"},
        }
        for name, value in figures.items():
            if isinstance(value, int | float):  # words and what is not known draw no curve
                self._writer.add_scalar(name, float(value), report.round)
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


@dataclass
class _Target:
    """`lost`: rounds that are not there. `why`: what was wrong with the last one; empty where it was written."""

    make: Callable[[], Writer]
    writer: Writer | None = None
    lost: int = 0
    why: str = ""


class RoundJournal:
    """A `RoundObserver` that never waits and never raises. `targets`: how each writer is made, by the name that people
    know; it is made in the thread, and anew after it has failed."""

    def __init__(self, targets: Mapping[str, Callable[[], Writer]], most: int = QUEUED_ROUNDS) -> None:
        self._targets = {name: _Target(make) for name, make in targets.items()}
        self._queue: queue.Queue[tuple[RoundReport, TrainReport] | None] = queue.Queue(most)
        self._dropped = 0
        self._behind = False
        """The last round found no place in the queue."""
        self._thread = threading.Thread(target=self._run, name="round-log", daemon=True)
        self._thread.start()

    def __call__(self, report: RoundReport, trained: TrainReport) -> StatusWarning | None:
        """Have the round written. What is missing of those before, if anything."""
        try:
            self._queue.put_nowait((report, trained))
            self._behind = False
        except queue.Full:
            self._behind = True
            self._dropped += 1
            log.warning("round %d is not logged: %d wait to be written", report.round, self._queue.maxsize)
        return self.problem()

    def problem(self) -> StatusWarning | None:
        """What is missing so far, as long as rounds cannot be written; None where they can."""
        told = [f"{one.lost} rounds are not in {name} ({one.why})" for name, one in self._targets.items() if one.why]
        if self._behind:
            told.append(f"{self._dropped} rounds are in none of them: the volume does not answer")
        if not told:
            return None
        cure = "Training goes on without. See that the job's volume has room and answers."
        return StatusWarning(reason=ROUNDS_NOT_LOGGED, message=f"{'; '.join(told)}. {cure}"[:2048])

    @property
    def waiting(self) -> int:
        """Rounds that are not written yet, those under way included."""
        return self._queue.unfinished_tasks

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what waits, for so long at most."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            for name, target in self._targets.items():
                self._write(name, target, *item)
            self._queue.task_done()
        for target in self._targets.values():
            self._let_go(target)

    def _write(self, name: str, target: _Target, report: RoundReport, trained: TrainReport) -> None:
        try:
            if target.writer is None:
                target.writer = target.make()
            target.writer(report, trained)
            target.why = ""
        except Exception as error:  # whatever it is, the next round is written by another one
            target.lost, target.why = target.lost + 1, str(error) or type(error).__name__
            log.warning("round %d is not in %s: %s", report.round, name, target.why)
            self._let_go(target)

    @staticmethod
    def _let_go(target: _Target) -> None:
        writer, target.writer = target.writer, None
        if writer is not None:
            # What it could not write is told already.
            with contextlib.suppress(Exception):
                writer.close()
