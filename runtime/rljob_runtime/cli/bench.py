"""`rljob bench [NAME]`: one command a claim, with baseline and limit measured in the same run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rljob_runtime.cli.bench_result import COLUMNS, OptionError, cells, markdown_table
from rljob_runtime.cli.files import Unusable, fail, read_text
from rljob_runtime.cli.screen import screen
from rljob_runtime.perf_model.profile import Profile, ProfileError
from rljob_runtime.workloads import TraceError

ENTRY_POINTS = "rljob.benchmarks"
"""Entry point group in which the optional distribution `rljob-bench` registers its benchmarks (bench/pyproject.toml). A
benchmark is `function(*, quick: bool, seed: int) -> dict` and returns the object that `--json` writes. Further
parameters have the names of options; other options are refused here. It raises `TraceError`, `ProfileError` and
`OptionError` before it measures anything."""

MISSING = "no benchmarks are installed; install the extra `bench` (in a checkout: pip install -e bench)"


def bench(
    name: Annotated[
        str | None, typer.Argument(help="Name of a benchmark. Without it, all names are listed.", show_default=False)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes, for a quick check. Do not quote these figures.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder of a trace, or of several trace folders, to use instead of generated lengths."),
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Run NAME-real: on engines of this machine, not simulated.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(help="Use the speed and the model of this file of `rljob profile`."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each job.")] = None,
    auto_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each job that selects its own plan.")
    ] = None,
    reward_seconds: Annotated[
        list[float] | None,
        typer.Option(help="Seconds of the plain job's reward stage. Repeatable; figures use the first value."),
    ] = None,
    trainers: Annotated[int | None, typer.Option(min=1, help="Number of accelerators that only train.")] = None,
    kill: Annotated[bool, typer.Option("--kill", help="Measure the cost of a death during the run.")] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Print the results in this file, or in the JSON files of this folder, as Markdown tables."),
    ] = None,
) -> None:
    """Run a benchmark and print its figures."""
    if markdown is not None:
        print(*map(markdown_table, _results(markdown)), sep="\n\n")
        return
    found = _installed()
    if name is None:
        print(*sorted(found), sep="\n")
        return
    point = _chosen(found, name, real)
    if json_file is not None:
        _require_folder(json_file)
    options: dict[str, Any] = {
        "traces": traces,
        "profile": profile,
        "rounds": rounds,
        "auto_rounds": auto_rounds,
        "reward_seconds": reward_seconds,
        "trainers": trainers,
        "kill": kill,
    }
    result = _run(point, quick, seed, options)
    screen().print(_table(result))
    if json_file is not None:
        _write(result, json_file)


def _installed() -> dict[str, EntryPoint]:
    """Return the installed benchmarks by name. Fails if there is none."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if not found:
        raise fail(MISSING)
    return found


def _require_folder(json_file: Path) -> None:
    """Fail before the benchmark runs if its result could not be written."""
    if not json_file.absolute().parent.is_dir():
        raise fail(f"--json {json_file}: {json_file.absolute().parent} is not a folder")


def _chosen(found: Mapping[str, EntryPoint], name: str, real: bool) -> EntryPoint:
    """Return the benchmark of this name, or its variant on real engines."""
    if real and f"{name}-real" not in found:
        others = ", ".join(sorted(one.removesuffix("-real") for one in found if one.endswith("-real")))
        raise fail(f"--real: there is no benchmark {name}-real; there is one of: {others or 'none'}")
    name = f"{name}-real" if real else name
    if name not in found:
        raise fail(f"no benchmark {name!r}; there are: {', '.join(sorted(found))}")
    return found[name]


def _run(point: EntryPoint, quick: bool, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a benchmark with those of the options that were given."""
    function: Callable[..., dict[str, Any]] = point.load()
    asked = {option: value for option, value in options.items() if value}
    _refuse_unknown(point.name, set(asked), set(options) & set(signature(function).parameters))
    try:
        if (profile := asked.get("profile")) is not None:
            asked["profile"] = Profile.from_json(read_text(profile))
        return function(quick=quick, seed=seed, **asked)
    except TraceError as error:
        raise fail(f"--traces: {error}") from error
    except ProfileError as error:
        raise fail(f"--profile {options['profile']}: {error}") from error
    except (OptionError, Unusable) as error:
        raise fail(str(error)) from error


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


def _results(place: Path) -> list[dict[str, Any]]:
    """Read the results in a file or in the JSON files of a folder. Fails without a result."""
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files:
        raise fail(f"--markdown {place}: the folder has no result; `rljob bench NAME --json FILE` writes one")
    return [_result(file) for file in files]


def _result(file: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(read_text(file))
        markdown_table(result)
    except Unusable as error:
        raise fail(f"--markdown: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise fail(f"--markdown {file}: the file is no result of `rljob bench NAME --json FILE`") from None
    return result


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['bench']} (seed {result['seed']})")
    for column in COLUMNS:
        table.add_column(column)
    for row in cells(result):
        table.add_row(*row)
    return table
