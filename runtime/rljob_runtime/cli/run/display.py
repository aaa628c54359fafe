"""Display of a local run: a drawing on a terminal, one line a round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live

from rljob_api.status import EvaluationPoint, RoundKind, RoundReport, RuntimeStatus
from rljob_runtime.cli.screen import say
from rljob_runtime.cli.views.episodes import told_idle
from rljob_runtime.cli.views.evaluations import evaluation_line
from rljob_runtime.cli.views.status import runtime_view
from rljob_runtime.cli.views.switches import switch_lines, switches_summary
from rljob_runtime.protocols import TrainReport

STOPPING = "Stopping. A checkpoint of the last update is written first. Press Ctrl-C again to end without it."


class Display(Protocol):
    """Shows a run while it lasts."""

    def status(self, status: RuntimeStatus) -> None:
        """Show a new status."""
        ...

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """Show a finished round."""
        ...

    def interrupted(self) -> None:
        """Show that the run is stopping."""
        ...


class Drawing:
    """Redraws the status on a terminal, below a line for each round."""

    def __init__(self, live: Live, rounds: int) -> None:
        self._live = live
        self._rounds = rounds

    def status(self, status: RuntimeStatus) -> None:
        """Draw the status."""
        self._live.update(runtime_view(status, self._rounds))

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """Print the round above the status, which has the switches of the last round."""
        say(self._live.console, round_line(report, self._rounds))

    def interrupted(self) -> None:
        """Print the notice above the status."""
        say(self._live.console, STOPPING, "yellow")


class Lines:
    """Prints a line for each round and evaluation to stdout, and each new warning to stderr."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds
        self._warned: set[tuple[str, str]] = set()
        self._evaluated: dict[str, EvaluationPoint | None] | None = None
        """The last result of each evaluation; None before the first status, which has those of an earlier run."""

    def status(self, status: RuntimeStatus) -> None:
        """Print the evaluations and the warnings that are new."""
        self._print_evaluations(status)
        for warning in status.warnings:
            if (warning.reason, warning.message) not in self._warned:
                self._warned.add((warning.reason, warning.message))
                print(f"{warning.reason}: {warning.message}", file=sys.stderr, flush=True)

    def _print_evaluations(self, status: RuntimeStatus) -> None:
        before, self._evaluated = self._evaluated, {report.name: report.last for report in status.evaluations}
        if before is None:
            return
        for report in status.evaluations:
            if report.last is not None and report.last != before.get(report.name):
                say(self._console, evaluation_line(report, report.last))

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """Print the round."""
        say(self._console, round_line(report, self._rounds))
        for line in switch_lines(report):
            say(self._console, f"  {line}")

    def interrupted(self) -> None:
        """Print the notice to stderr."""
        print(STOPPING, file=sys.stderr, flush=True)


@contextmanager
def display(console: Console, rounds: int) -> Iterator[Display]:
    """Yield the display that fits the console."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield Drawing(live, rounds)
    else:
        yield Lines(console, rounds)


def round_line(report: RoundReport, rounds: int) -> str:
    """Return a finished round as one line; values that it does not have are left out."""
    parts, episodes = [f"round {report.round}/{rounds}"], report.episodes
    if report.kind is not RoundKind.PLAIN:
        parts.append(report.kind.value)
    for value, text in (
        (report.reward, "reward {:.3g}"),
        (report.responses, "{} responses"),
        (report.mean_response_tokens, "{:.4g} tokens each"),
        (episodes.turns_mean if episodes is not None else None, "{:.3g} turns each"),
        (episodes.outside_seconds if episodes is not None else None, "{:.3g} s outside the model"),
        (report.idle_environments if told_idle(report.idle_environments) else None, "engines {:.0%} idle for them"),
        (report.staleness, "staleness {:.2g}"),
        (report.aborted_samples or None, "{} aborted"),
        (report.seconds, "{:.1f} s"),
        (switches_summary(report), "{}"),
    ):
        if value is not None:
            parts.append(text.format(value))
    return "  ".join(parts)
