"""`rljob trace inspect|fit|convert|export`: statistics of a recorded workload, and a generator fitted to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from rljob_runtime.cli.files import fail
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.samples.lengths import export
from rljob_runtime.workloads import Findings, Generator, Step, TraceError, WorkloadParameters, batch
from rljob_runtime.workloads.distribution import DistributionParameters
from rljob_runtime.workloads.fit import fit as fit_trace
from rljob_runtime.workloads.quantile_distribution import Distribution
from rljob_runtime.workloads.summary import Quantiles, TraceStatistics, summarise
from rljob_runtime.workloads.trace import read_steps, read_trace

trace = typer.Typer(name="trace", help="Inspect recorded workloads and fit generators to them.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="A folder of PolyTrace files.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count bad rows instead of refusing the trace.")]
_STEPS_SHOWN = 12
_BAD_SHOWN = 10
_DRAWN_STEPS, _DRAWN_PROMPTS, _DRAWN_RESPONSES = 10, 128, 8


@trace.command()
def inspect(
    folder: Folder,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw distributions and steps (.png, .svg).")] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Show statistics of a trace: lengths, tails, similarity within prompts, turns, tools, rewards."""
    console = screen()
    findings = Findings(skip_bad)
    with _reported():
        if plot_file is None:
            statistics = summarise(folder.resolve().name, read_steps(folder, findings))
        else:
            steps = read_trace(folder, findings).steps
            statistics = summarise(folder.resolve().name, steps)
            _plot(steps, statistics, plot_file)
    _show(console, {statistics.task: statistics})
    console.print(_steps(statistics))
    _report(console, findings)
    if json_file is not None:
        found = {"skipped": findings.bad, "notes": findings.notes}
        with _written("--json", json_file):
            json_file.write_text(json.dumps(asdict(statistics) | found, indent=1) + "\n", encoding="utf-8")


@trace.command()
def fit(
    folder: Folder,
    json_file: Annotated[Path, typer.Option("--json", help="Write the generator's parameters to this file.")],
    source: Annotated[str, typer.Option(help="Origin of the trace; stored in the file.")] = "",
    skip_bad: SkipBad = False,
) -> None:
    """Fit a generator to a trace. Its file contains quantiles and correlations, no rows."""
    console = screen()
    findings = Findings(skip_bad)
    with _reported():
        recorded = read_trace(folder, findings)
        try:
            parameters = fit_trace(recorded, source or str(folder))
        except ValueError as error:
            raise TraceError(f"{folder}: {error}") from error
    with _written("--json", json_file):
        parameters.save(json_file)
    columns = {"trace": summarise(recorded.task, recorded.steps), "generator": _drawn(parameters)}
    _show(console, columns)
    _report(console, findings)


@trace.command()
def convert(
    file: Annotated[Path, typer.Argument(help="PolyTrace's enhanced_task_distribution_parameters.json.")],
    folder: Annotated[Path, typer.Argument(help="Folder for math-235b.json and tools-235b.json.")],
    tool_seconds: Annotated[
        Path, typer.Option(help="JSON file of a generator with tool use, since FILE has no tool seconds.")
    ],
    correlation: Annotated[
        float, typer.Option(min=0, max=1, help="Similarity within prompts, which FILE does not contain.")
    ] = 0.5,
    cap: Annotated[int, typer.Option(min=1, help="The longest response, in tokens.")] = 32_000,
) -> None:
    """Make generators from PolyTrace's fitted distributions."""
    console = screen()
    with _reported():
        distribution = DistributionParameters.load(file)
        seconds = _tool_seconds(tool_seconds)
    made = [distribution.math(correlation, cap), distribution.tool_use(correlation, seconds, cap)]
    for parameters in made:
        file = folder / f"{parameters.task}.json"
        with _written("the generator", file):
            parameters.save(file)
    _show(console, {parameters.task: _drawn(parameters) for parameters in made})


@trace.command("export")
def export_lengths(
    folder: Annotated[Path, typer.Argument(help="The folder of a local run, or a copy of a job's volume.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the trace. Default: FOLDER/trace.")] = None,
) -> None:
    """Write the lengths of a job's prompts and responses as a trace."""
    out = out or folder / "trace"
    with _reported(), _written("--out", out):
        found = export(folder, out)
    counts = f"{found.rounds} rounds, {found.prompts} prompts, {found.responses} responses"
    say(screen(), f"{out}: {counts}")


@contextmanager
def _reported() -> Iterator[None]:
    """Report an error of a trace in one line, without a traceback."""
    try:
        yield
    except TraceError as error:
        raise fail(str(error)) from None


@contextmanager
def _written(what: str, file: Path) -> Iterator[None]:
    try:
        yield
    except TraceError:
        raise
    except (OSError, ValueError) as error:
        raise fail(f"{what} {file} cannot be written: {error}") from error


def _plot(steps: tuple[Step, ...], statistics: TraceStatistics, file: Path) -> None:
    try:
        from rljob_runtime.cli.trace.plot import plot  # matplotlib is an extra, and slow to import
    except ImportError:
        raise TraceError("--plot needs matplotlib: pip install 'rljob[plots]'") from None
    with _written("--plot", file):
        plot(steps, statistics, file)


def _tool_seconds(file: Path) -> Distribution:
    tool_use = WorkloadParameters.load(file).tool_use
    if tool_use is None:
        raise TraceError(f"{file}: field tool_use is missing; a generator with tool use would be right")
    return tool_use.seconds


def _drawn(parameters: WorkloadParameters) -> TraceStatistics:
    generator = Generator(parameters)
    steps = range(_DRAWN_STEPS)
    return summarise(
        parameters.task,
        (Step(step, batch(generator, step, _DRAWN_PROMPTS, _DRAWN_RESPONSES).prompts) for step in steps),
    )


def _show(console: Console, workloads: dict[str, TraceStatistics]) -> None:
    console.print(_figures(workloads))
    console.print(_distributions(workloads))


def _figures(workloads: dict[str, TraceStatistics]) -> Table:
    """Make a table with one row a figure and one column a workload; rows without any value are left out."""
    table = Table("", *(Column(name, justify="right") for name in workloads))
    rows: list[tuple[str, Callable[[TraceStatistics], str]]] = [
        ("steps", lambda s: str(len(s.steps))),
        ("prompts", lambda s: str(s.prompts)),
        ("responses", lambda s: str(s.responses)),
        ("share of the longest 20 %", lambda s: f"{s.longest_fifth_share:.1%}"),
        ("responses as long as the longest", lambda s: f"{s.at_longest_share:.2%}"),
        ("mean over longest of a step", lambda s: f"{s.mean_over_longest:.3f}"),
        ("within-prompt correlation", lambda s: _number(s.within_prompt_correlation)),
        ("within-prompt correlation, log", lambda s: _number(s.within_prompt_correlation_log)),
        ("tool calls", lambda s: str(s.tool_calls or "")),
        ("kept by dynamic sampling", lambda s: "" if s.kept_share is None else f"{s.kept_share:.1%}"),
    ]
    for label, figure in rows:
        cells = [figure(statistics) for statistics in workloads.values()]
        if any(cells):
            table.add_row(label, *cells)
    return table


def _distributions(workloads: dict[str, TraceStatistics]) -> Table:
    table = Table("", "", *(Column(name, justify="right") for name in ("mean", "p50", "p90", "p99", "longest")))
    rows: list[tuple[str, Callable[[TraceStatistics], Quantiles | None]]] = [
        ("prompt tokens", lambda s: s.input_tokens),
        ("generated tokens", lambda s: s.output_tokens),
        ("turns", lambda s: s.turns),
        ("tool call, seconds", lambda s: s.tool_call_seconds),
        ("tool answer, tokens", lambda s: s.tool_answer_tokens),
        ("reward, seconds", lambda s: s.reward_seconds),
    ]
    for label, distribution in rows:
        for name, statistics in workloads.items():
            if found := distribution(statistics):
                figures = (found.mean, found.p50, found.p90, found.p99, found.longest)
                table.add_row(label, name, *map(_number, figures))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _steps(statistics: TraceStatistics) -> Table:
    shown = statistics.steps[:_STEPS_SHOWN]
    rest = len(statistics.steps) - len(shown)
    names = ("step", "prompts", "responses", "mean", "p50", "p90", "p99", "longest", "mean / longest")
    caption = f"and {rest} more steps: --json has them" if rest else None
    table = Table(*(Column(name, justify="right") for name in names), title="generated tokens", caption=caption)
    for step in shown:
        lengths = step.output_tokens
        figures = (lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.longest)
        counts = (step.step, step.prompts, step.responses)
        table.add_row(*map(str, counts), *map(_number, figures), f"{step.mean_over_longest:.3f}")
    return table


def _report(console: Console, findings: Findings) -> None:
    for note in findings.notes:
        say(console, f"note: {note}")
    for row in findings.bad[:_BAD_SHOWN]:
        say(console, f"skipped: {row}")
    if findings.bad:
        say(console, f"{len(findings.bad)} rows skipped")
