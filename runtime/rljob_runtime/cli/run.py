"""`rljob run -f FILE`: the whole job on this machine, on a local Ray, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from rljob_api.status import RuntimeStatus
from rljob_runtime.cli.files import Unusable, fail, read_job
from rljob_runtime.cli.view import runtime_view


def run(
    file: Annotated[Path, typer.Option("--file", "-f", help="An RLJob manifest.")],
    workdir: Annotated[
        Path | None, typer.Option(help="Store, checkpoints, logs; a second run with it goes on. Default: runs/NAME.")
    ] = None,
) -> None:
    """Run an RLJob to its end on this machine."""
    console = Console()
    try:
        job = read_job(file)
    except Unusable as error:
        raise fail(str(error)) from None
    name = job.metadata.name
    place = workdir or Path("runs") / name
    place.mkdir(parents=True, exist_ok=True)

    from rljob_runtime.local import (
        run as run_local,
    )  # Ray and torch take seconds to import: after the manifest is known good

    with Live(console=console, refresh_per_second=4) as live:

        def show(status: RuntimeStatus) -> None:
            live.update(runtime_view(status, job.spec.rounds))

        result = run_local(job, place, show)
    finished = result.finished
    if finished is None or finished.outcome != "Complete":
        reason = "interrupted" if finished is None else f"{finished.reason}: {finished.message}"
        console.print(f"[red]{name}: not complete[/red] ({reason}); logs in {place}")
        raise typer.Exit(1)
    console.print(
        f"{name}: Complete rounds={result.round} weight_version={result.weight_version} reward={result.reward}"
    )
