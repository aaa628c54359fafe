"""Every closed round as a line of JSON and as TensorBoard scalars, for people and plots."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.protocols import TrainReport

log = logging.getLogger(__name__)


class RoundLog:
    """Appends to `rounds.jsonl` in `folder`. A round that is played again after a rewind gets another line; the last
    one holds. A disk that is full costs lines, never the run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "rounds.jsonl"

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """A `RoundObserver`."""
        line = json.dumps({**report.to_dict(), "training": asdict(trained)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            log.warning("round %d is not in %s: %s", report.round, self._path, error)


class TensorBoard:
    """Writes the round's figures as scalars below `folder`, the round being the step."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder))

    def __call__(self, report: RoundReport, trained: TrainReport) -> None:
        """A `RoundObserver`."""
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
