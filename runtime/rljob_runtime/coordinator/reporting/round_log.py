"""Round log: writes each closed round and each evaluation as a line of JSON and as TensorBoard scalars.

Both are on the job's volume, which may be full or may not respond. A separate thread writes them, so that no round
waits and no job ends for them. Rounds and evaluations that cannot be written are counted and reported."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Protocol

from rljob_api.status import RoundReport, StatusWarning
from rljob_runtime.evaluation import EvaluationLog, EvaluationResult, evaluation_metrics
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport

ROUNDS_NOT_LOGGED = "RoundsNotLogged"
"""The reason of the warning that the round log reports."""

VOLUME_CURE = "Training continues. Check that the job's volume has space and responds."

log = logging.getLogger(__name__)

QUEUED_ROUNDS = 256
"""Most rounds and evaluations that wait to be written."""
QUEUED_OTHERS = {"samples": 4, "evaluations": 32, "events": 64}
"""The same by kind, for entries that are no rounds. They leave most of the queue to rounds, and texts take memory."""
CLOSE_SECONDS = 10.0


class Writer(Protocol):
    """Writes rounds and evaluations. It may block and raise."""

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Write a round."""
        ...

    def evaluated(self, result: EvaluationResult) -> None:
        """Write an evaluation."""
        ...

    def close(self) -> None:
        """Write what is buffered."""
        ...


class RoundLog:
    """Appends a line for each round to `rounds.jsonl` in `folder`, and one for each evaluation to `evaluations.jsonl`.

    After a rewind, the lines of abandoned rounds are deleted when the first of them is written again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "rounds.jsonl"
        self._evaluations = EvaluationLog(folder)
        self._last: int | None = None
        """The last round in the file; None if unknown."""

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Append a line. Raises `OSError`; then the file is unchanged."""
        training = {name: value for name, value in asdict(trained).items() if value is not None}
        line = json.dumps({**report.to_dict(), "training": training}) + "\n"
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
                # A partial line would corrupt the next one.
                file.truncate(size)
                raise
        self._last = report.round

    def evaluated(self, result: EvaluationResult) -> None:
        """Append an evaluation. Raises `OSError`."""
        self._evaluations.append(result)

    def close(self) -> None:
        """Do nothing: there is no buffer."""

    def _undo(self, first: int) -> None:
        """Delete all lines except complete ones of rounds before `first`."""
        if not self._path.is_file():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        kept = "".join(f"{line}\n" for line in text.splitlines() if _round_of(line) < first)
        if kept != text:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(kept, encoding="utf-8")
            fresh.replace(self._path)


def _round_of(line: str) -> float:
    """Return the round of a line; infinity for an incomplete line, as after a crash."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return inf


class TensorBoard:
    """Writes the metrics of rounds and evaluations as scalars below `folder`. After an error it must be replaced."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer as Scalars

        try:
            self._writer = Scalars(str(folder))
        except BaseException:
            # A full disk still takes names: each try would leave an empty file.
            for file in folder.glob("events.out.tfevents.*"):
                if file.stat().st_size == 0:
                    file.unlink()
            raise

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """Write a round. Raises what the writer raises."""
        self._write(round_metrics(report, trained), report.round)

    def evaluated(self, result: EvaluationResult) -> None:
        """Write an evaluation at the round of its weights. Raises what the writer raises."""
        self._write(evaluation_metrics(result), result.round)

    def _write(self, metrics: Mapping[str, float], number: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


@dataclass(frozen=True)
class Entry:
    """A round, or something else that waits to be written. `kind`: its plural, for people."""

    kind: str
    name: str
    write: Callable[[Writer], None]


@dataclass
class _Target:
    """One writer.

    `lost`: rounds and evaluations that it failed to write. `why`: the last error; empty if the last one was written.
    """

    make: Callable[[], Writer]
    writer: Writer | None = None
    lost: Counter[str] = field(default_factory=Counter)
    why: str = ""


class RoundJournal:
    """A `RoundObserver` that never blocks and never raises.

    `targets` make the writers, by displayed name. The thread makes them, and again after an error.
    """

    def __init__(
        self,
        targets: Mapping[str, Callable[[], Writer]],
        most: int = QUEUED_ROUNDS,
        reason: str = ROUNDS_NOT_LOGGED,
        cure: str = VOLUME_CURE,
    ) -> None:
        self._reason, self._cure = reason, cure
        self._targets = {name: _Target(make) for name, make in targets.items()}
        self._queue: queue.Queue[Entry | None] = queue.Queue(most)
        self._turns = {kind: threading.Semaphore(most) for kind, most in QUEUED_OTHERS.items()}
        self._dropped: Counter[str] = Counter()
        self._behind: set[str] = set()
        """The kinds whose last record was dropped because too many wait."""
        self._late = 0
        """Records that were not written in time at the end."""
        self._thread = threading.Thread(target=self._run, name="round-log", daemon=True)
        self._thread.start()

    def __call__(self, report: RoundReport, trained: TrainReport) -> StatusWarning | None:
        """Queue a round. Return a warning if earlier records are missing."""
        self.put(Entry("rounds", f"round {report.round}", lambda writer: writer(report, trained)))
        return self.problem()

    def evaluated(self, result: EvaluationResult) -> None:
        """Queue an evaluation. The next round warns if it is missing."""
        name = f"evaluation {result.name} of round {result.round}"
        self.put(Entry("evaluations", name, lambda writer: writer.evaluated(result)))

    def put(self, entry: Entry) -> None:
        """Queue an entry. If too many of its kind wait, the next round warns that it is missing."""
        turn = self._turns.get(entry.kind)
        taken = turn is None or turn.acquire(blocking=False)
        try:
            if not taken:
                raise queue.Full
            self._queue.put_nowait(entry)
            self._behind.discard(entry.kind)
        except queue.Full:
            if taken and turn is not None:
                turn.release()
            self._behind.add(entry.kind)
            self._dropped[entry.kind] += 1
            log.warning("%s is not logged: too many wait to be written", entry.name)

    def problem(self) -> StatusWarning | None:
        """Return a warning with the missing records while records cannot be written, else None."""
        missing = [
            f"{_counts(one.lost)} are not in {name} ({one.why})" for name, one in self._targets.items() if one.why
        ]
        if self._behind:
            missing.append(f"{_counts(self._dropped)} are not in {', '.join(self._targets)}: it does not answer")
        if self._late:
            missing.append(f"{self._late} records at the end are not in {', '.join(self._targets)}: it does not answer")
        if not missing:
            return None
        return StatusWarning(reason=self._reason, message=f"{'; '.join(missing)}. {self._cure}"[:2048])

    @property
    def waiting(self) -> int:
        """Rounds and evaluations that are not written yet."""
        return self._queue.unfinished_tasks

    def flush(self, seconds: float = CLOSE_SECONDS) -> StatusWarning | None:
        """Wait until all is written, for at most `seconds`. Return a warning about what is missing."""
        written = self._queue.all_tasks_done
        with written:
            written.wait_for(lambda: not self._queue.unfinished_tasks, seconds)
        self._late = self.waiting
        return self.problem()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what is queued, for at most `seconds`."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            for name, target in self._targets.items():
                self._write(name, target, record)
            if record.kind in self._turns:
                self._turns[record.kind].release()
            self._queue.task_done()
        for target in self._targets.values():
            self._discard(target)

    def _write(self, name: str, target: _Target, record: Entry) -> None:
        try:
            if target.writer is None:
                target.writer = target.make()
            record.write(target.writer)
            target.why = ""
        except Exception as error:  # any error replaces the writer
            target.lost[record.kind] += 1
            target.why = str(error) or type(error).__name__
            log.warning("%s is not in %s: %s", record.name, name, target.why)
            self._discard(target)

    @staticmethod
    def _discard(target: _Target) -> None:
        writer, target.writer = target.writer, None
        if writer is not None:
            # The error was reported already.
            with contextlib.suppress(Exception):
                writer.close()


def _counts(numbers: Counter[str]) -> str:
    """Write numbers by kind, as "2 rounds and 1 evaluations"."""
    return " and ".join(f"{number} {kind}" for kind, number in numbers.items())
