"""The `rljob` command: `run`, `status`, `bench`, `check`, `profile`, `simulate`, `trace`."""

from __future__ import annotations

import typer

from rljob_runtime.cli.bench import bench
from rljob_runtime.cli.check import check
from rljob_runtime.cli.profile import profile
from rljob_runtime.cli.run import run
from rljob_runtime.cli.simulate import simulate
from rljob_runtime.cli.status import status
from rljob_runtime.cli.trace import trace

app = typer.Typer(
    name="rljob",
    help="Elastic RL post-training: run a job on this machine, show one in a cluster, measure, inspect traces.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(status)
app.command()(bench)
app.command()(check)
app.command()(profile)
app.command()(simulate)
app.add_typer(trace)

__all__ = ["app"]
