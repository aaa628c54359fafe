"""`rljob bench [NAME]`: one command a claim, with its baseline and its limit measured in the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rljob_runtime.cli.files import fail
from rljob_runtime.workloads import TraceError

ENTRY_POINTS = "rljob.benchmarks"
"""Every room registers its benchmarks here (pyproject), so that the operator's are found without an import of it.
A benchmark is `function(*, quick: bool, seed: int) -> dict` and returns the object that `--json` writes. One that can
measure recorded traces takes `traces: Path | None` as well, and raises `TraceError`."""


def bench(
    name: Annotated[str | None, typer.Argument(help="Which; without it, their names.", show_default=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: a look, not a figure to quote.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="Measure these instead of generated lengths: a trace's folder, or one that holds such folders."
        ),
    ] = None,
    real: Annotated[bool, typer.Option("--real", help="On engines of this machine, not simulated: NAME-real.")] = False,
) -> None:
    """Run a benchmark and print its figures."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name is None:
        print(*sorted(found), sep="\n")
        return
    if real and f"{name}-real" not in found:
        others = ", ".join(sorted(one.removesuffix("-real") for one in found if one.endswith("-real")))
        raise fail(f"--real: there is no benchmark {name}-real; there is one of: {others or 'none'}")
    if real:
        name = f"{name}-real"
    if name not in found:
        raise fail(f"no benchmark {name!r}; there are: {', '.join(sorted(found))}")
    function: Callable[..., dict[str, Any]] = found[name].load()
    more: dict[str, Any] = {}
    if traces is not None:
        if "traces" not in signature(function).parameters:
            raise fail(f"--traces {traces}: benchmark {name!r} measures no traces; leave the option out")
        more["traces"] = traces
    try:
        result = function(quick=quick, seed=seed, **more)
    except TraceError as error:
        raise fail(f"--traces: {error}") from error
    Console().print(_table(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['bench']} (seed {result['seed']})")
    for column in ("figure", "value", "unit", "better", "goal", "limit"):
        table.add_column(column)
    for figure in result["figures"]:
        goal, limit = figure.get("goal"), figure.get("limit")
        table.add_row(
            figure["name"],
            f"{figure['value']:.4g}",
            figure["unit"],
            figure["better"],
            "" if goal is None else f"{goal:.4g}",
            "" if limit is None else f"{limit:.4g}" if isinstance(limit, int | float) else str(limit),
        )
    return table
