"""`rljob run -f FILE`: the complete job on this machine, on a local Ray, without a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from rljob_api.constants import ENGINE_MISMATCH
from rljob_api.status import RuntimeStatus
from rljob_runtime.cli.files import Unusable, fail, read_job
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.cli.view import runtime_view


def run(
    file: Annotated[Path, typer.Option("--file", "-f", help="An RLJob manifest.")],
    workdir: Annotated[
        Path | None,
        typer.Option(help="Folder of store, checkpoints and logs. A second run continues. Default: runs/NAME."),
    ] = None,
) -> None:
    """Run an RLJob to its end on this machine."""
    console = screen()
    try:
        job = read_job(file)
    except Unusable as error:
        raise fail(str(error)) from None
    place = workdir or Path("runs") / job.name

    # Ray and torch take seconds to import, so the manifest is checked first.
    from rljob_runtime.coordinator.store.connection import StoreUnusable
    from rljob_runtime.local import FolderRefused, RayFailed
    from rljob_runtime.local import run as run_local

    try:
        with Live(console=console, refresh_per_second=4) as live:
            shown = _Warnings()

            def show(status: RuntimeStatus) -> None:
                live.update(runtime_view(status, job.spec.rounds))
                if not console.is_terminal:
                    shown.print_new(status)

            result = run_local(job, place, show)
    except (FolderRefused, StoreUnusable) as error:
        raise fail(str(error)) from None
    except RayFailed as error:
        raise fail(f"{job.name}: {error}", code=1) from None
    if not console.is_terminal:
        console.line()  # Without a terminal, the last drawing has no line end.
    finished = result.finished
    if finished is None or finished.outcome != "Complete":
        say(console, f"{job.name}: not complete ({_why(result)}); logs in {place}", "red")
        raise typer.Exit(1)
    say(console, _complete(job.name, result))


def _why(result: RuntimeStatus) -> str:
    """Return why a run is not complete."""
    if result.finished is not None:
        return f"{result.finished.reason}: {result.finished.message}"
    halt = next((warning for warning in result.warnings if warning.reason == ENGINE_MISMATCH), None)
    return f"{halt.reason}: {halt.message}" if halt is not None else "interrupted"


def _complete(name: str, result: RuntimeStatus) -> str:
    """Return the last line. A run that finds all rounds done publishes nothing."""
    done = f"{name}: Complete rounds={result.round}"
    if result.weight_version is None:
        return f"{done}: nothing was left to do, the model is in {result.model_path}"
    return f"{done} weight_version={result.weight_version} reward={result.reward}"


class _Warnings:
    """Warnings that are already printed; used if there is no terminal."""

    def __init__(self) -> None:
        self._printed: set[tuple[str, str]] = set()

    def print_new(self, status: RuntimeStatus) -> None:
        """Print the warnings that are new."""
        for warning in status.warnings:
            if (warning.reason, warning.message) not in self._printed:
                self._printed.add((warning.reason, warning.message))
                print(f"{warning.reason}: {warning.message}", file=sys.stderr, flush=True)
