"""The `rljob` command: `run`, `status`, `bench`, `check`, `episodes`, `profile`, `samples`, `simulate`, `trace`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from rljob_runtime.cli import jobs
from rljob_runtime.cli.bench import bench
from rljob_runtime.cli.check import check
from rljob_runtime.cli.episodes import episodes
from rljob_runtime.cli.profile import profile
from rljob_runtime.cli.run import run
from rljob_runtime.cli.samples import samples
from rljob_runtime.cli.simulate import simulate
from rljob_runtime.cli.status import status
from rljob_runtime.cli.timeline import timeline
from rljob_runtime.cli.trace import trace

app = typer.Typer(
    name="rljob",
    help="Elastic RL post-training: run a job on this machine, show one in a cluster, measure, inspect traces.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rljob {version('rljob')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of all commands."""


app.command()(run)
app.command("list")(jobs.list_jobs)
app.command()(jobs.submit)
app.command()(status)
app.command()(jobs.logs)
app.command()(jobs.events)
app.command()(jobs.suspend)
app.command()(jobs.resume)
app.command()(samples)
app.command()(bench)
app.command()(check)
app.command()(episodes)
app.command()(profile)
app.command()(simulate)
app.command()(timeline)
app.add_typer(trace)

__all__ = ["app"]
