"""Ending of a local run: what is said at its end, where its results are, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rljob_api import RLJob
from rljob_api.constants import ENGINE_MISMATCH
from rljob_api.status import FinishedOutcome, RuntimeStatus
from rljob_runtime.cli.views.evaluations import evaluation_summary

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
BEFORE_IT_CONTINUED = "interrupted before it continued; rounds and checkpoints are as before"
_RESULTS = {
    "rounds": ("rounds.jsonl", "{path}"),
    "samples": ("samples", "rljob samples {folder}"),
    "TensorBoard": ("tensorboard", "tensorboard --logdir {path}"),
}
"""By label: a file or folder of the run, and its path or the command that shows it."""


@dataclass(frozen=True)
class Ending:
    """The last lines of a run. `style` is that of the first."""

    line: str
    more: tuple[str, ...] = ()
    style: str = ""
    code: int = 0


def ending(job: RLJob, folder: Path, result: RuntimeStatus, again: str, rounds: int) -> Ending:
    """Return the ending for the last status of a run.

    `again` is the command that continues it, `rounds` the number of rounds that this run has trained.
    """
    finished = result.finished
    halt = next((warning for warning in result.warnings if warning.reason == ENGINE_MISMATCH), None)
    if finished is None and halt is None:
        if not result.round and result.weight_version is None and (folder / "rounds.jsonl").exists():
            line = f"{job.name}: {BEFORE_IT_CONTINUED}; logs in {folder}"
            return Ending(line, (f"continue with: {again}",), "yellow", INTERRUPTED)
        saved = result.checkpoint.round if result.checkpoint is not None else 0
        kept = f"its last checkpoint is of round {saved}" if saved else "it has no checkpoint yet"
        line = f"{job.name}: interrupted after round {result.round} of {job.spec.rounds}; {kept}; logs in {folder}"
        return Ending(line, (f"continue with: {again}",), "yellow", INTERRUPTED)
    failure = halt if finished is None else finished
    if failure is not None and (finished is None or finished.outcome is not FinishedOutcome.COMPLETE):
        line = f"{job.name}: not complete ({failure.reason}: {failure.message}); logs in {folder}"
        return Ending(line, style="red", code=1)
    return Ending(_complete(job.name, result, rounds), tuple(_results(folder, result)))


def interrupted_at_start(folder: Path) -> str:
    """Return what an interrupt before the coordinator's start has left, and how to go on: a command follows."""
    if (folder / "rounds.jsonl").exists():
        return f"{BEFORE_IT_CONTINUED}; continue with"
    return "interrupted before the first round; start again with"


def _complete(name: str, result: RuntimeStatus, rounds: int) -> str:
    """Return the line of a complete job. A run that finds all rounds done has no reward of its own."""
    done = f"{name}: Complete rounds={result.round}"
    if not rounds:
        return f"{done}: nothing was left to do"
    reward = "" if result.reward is None else f" reward={result.reward}"
    return f"{done} weight_version={result.weight_version}{reward}"


def _results(folder: Path, result: RuntimeStatus) -> Iterator[str]:
    if result.reward_first is not None and result.reward_last is not None:
        first, last = f"{result.reward_first:.3g}", f"{result.reward_last:.3g}"
        yield f"  reward       {first} in the first fifth of the rounds, {last} in the last"
    for report in result.evaluations:
        yield f"  evaluation   {report.name}: {evaluation_summary(report)}"
    if result.model_path is not None:
        yield f"  model        {result.model_path}"
    if result.best_model is not None:
        yield f"  best model   {result.best_model.path} (round {result.best_model.round})"
    for label, (name, text) in _RESULTS.items():
        path = folder / name
        if path.exists():
            yield f"  {label:<13}{text.format(path=path, folder=folder)}"
