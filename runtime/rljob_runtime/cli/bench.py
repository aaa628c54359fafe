"""`rljob bench [NAME]`: one command a claim, with its baseline and its limit measured in the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rljob_runtime.cli.bench_result import OptionError
from rljob_runtime.cli.files import Unusable, fail, read_text
from rljob_runtime.cli.screen import screen
from rljob_runtime.perf_model.profile import Profile, ProfileError
from rljob_runtime.workloads import TraceError

ENTRY_POINTS = "rljob.benchmarks"
"""The distribution `rljob-bench` registers its benchmarks here (bench/pyproject.toml); it is optional.
A benchmark is `function(*, quick: bool, seed: int) -> dict` and returns the object that `--json` writes. It takes what
else it knows of the options by their names; what it does not take is refused here. It raises `TraceError`,
`ProfileError` and `OptionError`, before it has measured anything."""

MISSING = "no benchmarks are installed; install the extra `bench` (in a checkout: pip install -e bench)"


def bench(
    name: Annotated[str | None, typer.Argument(help="Which; without it, their names.", show_default=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: a look, not a figure to quote.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="Measure these instead of generated lengths: a trace's folder, or one that holds such folders."
        ),
    ] = None,
    real: Annotated[bool, typer.Option("--real", help="On engines of this machine, not simulated: NAME-real.")] = False,
    profile: Annotated[
        Path | None,
        typer.Option(help="Engines as fast as in this file of `rljob profile`; the settings of its model."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Of each job.")] = None,
    auto_rounds: Annotated[int | None, typer.Option(min=1, help="Of each job that chooses by itself.")] = None,
    reward_seconds: Annotated[
        list[float] | None,
        typer.Option(help="Of the plain job's reward stage; may be given several times. The first is the figures'."),
    ] = None,
    trainers: Annotated[int | None, typer.Option(min=1, help="Accelerators that only train.")] = None,
    kill: Annotated[bool, typer.Option("--kill", help="What a death in the middle costs.")] = False,
) -> None:
    """Run a benchmark and print its figures."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if not found:
        raise fail(MISSING)
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
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise fail(f"--json {json_file}: {json_file.absolute().parent} is no folder")
    function: Callable[..., dict[str, Any]] = found[name].load()
    options: dict[str, Any] = {
        "traces": traces,
        "profile": profile,
        "rounds": rounds,
        "auto_rounds": auto_rounds,
        "reward_seconds": reward_seconds,
        "trainers": trainers,
        "kill": kill,
    }
    asked = {option: value for option, value in options.items() if value}
    _refuse_unknown(name, set(asked), set(options) & set(signature(function).parameters))
    try:
        if profile is not None:
            asked["profile"] = Profile.from_json(read_text(profile))
        result = function(quick=quick, seed=seed, **asked)
    except TraceError as error:
        raise fail(f"--traces: {error}") from error
    except ProfileError as error:
        raise fail(f"--profile {profile}: {error}") from error
    except (OptionError, Unusable) as error:
        raise fail(str(error)) from error
    screen().print(_table(result))
    if json_file is not None:
        _write(result, json_file)


def _refuse_unknown(name: str, asked: set[str], known: set[str]) -> None:
    if unknown := sorted(asked - known):
        takes = ", ".join(sorted(map(_flag, known))) or "none of its kind"
        raise fail(f"{_flag(unknown[0])}: benchmark {name!r} has no such option; it has {takes}")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _write(result: dict[str, Any], file: Path) -> None:
    try:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise fail(f"--json {file} cannot be written: {error.strerror}") from None


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
