"""`rljob profile`: measures this machine's engine, as a file from which the performance model is fitted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rljob_api import RLJob
from rljob_runtime.cli.files import Unusable, fail, read_job, read_text
from rljob_runtime.cli.profile.start import JobRound, show
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.perf_model.fitting import Fit, fit, predict_round, round_errors
from rljob_runtime.perf_model.profile import Profile, ProfileError, Start
from rljob_runtime.workloads import TraceError

if TYPE_CHECKING:
    from rljob_runtime.rollout.profiling.profiler import ProfilingObserver
    from rljob_runtime.rollout.profiling.target import Target

T = TypeVar("T")

ENGINES = {"vllm": "VLLM", "reference": "Reference"}
INTERRUPTED = 130
BATCH, CONTEXT = 64, 1024


def profile(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="An RLJob manifest: its model, engine and sizes.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model alone, as in spec.model.source.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile to this file.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Measure no profile; run rounds and compare them with this profile.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine: vllm or reference. Default: the job's, else vllm.")
    ] = None,
    tensor_parallel: Annotated[
        str | None, typer.Option(help="Sizes, such as 1,2. Default: those that the job allows, else 1.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of measuring, without the start of engines.")] = 120.0,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Lengths of the round that selects the best tensor parallel size: a generator's name or file, or a "
            "trace's folder. Default: all of maxResponseTokens."
        ),
    ] = None,
) -> None:
    """Measure this machine's engine: decode steps, prefill and KV cache over batch, context and tensor parallel size.

    Of several sizes, the one with the shortest round of the job is reported as the one to start at.

    Ctrl-C ends the measurement early. The profile is written if it suffices for a performance model.
    """
    if (out is None) == (check is None):
        raise fail("--out FILE writes a profile, --check FILE reads one; exactly one of the two would be right")
    if out is not None and not out.absolute().parent.is_dir():
        raise fail(f"--out {out}: {out.absolute().parent} is not a folder")
    job = _job(file, model)
    job_round = _round(job, workload)
    target, console = _target(job, model, engine, tensor_parallel, seconds), screen()
    if check is not None:
        _check(console, target, check, seconds, job_round)
    elif out is not None:
        _write(console, target, out, seconds, job_round)


def _write(console: Console, target: Target, out: Path, seconds: float, job_round: JobRound | None) -> None:
    with _observer(console, seconds) as observer:
        measured = _measured(lambda: target.profile(observer))
        stopped = observer.stopped()
    try:
        fits = {size: fit(measured, size) for size in measured.tensor_parallel_sizes or (1,)}
    except ProfileError as error:
        if stopped:
            raise fail(f"interrupted, and too early: {error}. Nothing is written", INTERRUPTED) from None
        raise fail(f"{error}; a larger --seconds would be right") from None
    start = job_round.start(fits) if job_round is not None else None
    if isinstance(start, Start):
        measured = measured.model_copy(update={"start": start})
    out.write_text(measured.to_json() + "\n", encoding="utf-8")
    console.print(_table(measured, fits))
    if job_round is not None and start is not None:
        show(console, start, job_round.job.spec.rollout.tensor_parallel_size)
    loads = f"{len(measured.decode)} loads of decode steps, {len(measured.prefill)} of prefill"
    say(console, f"{out}: {loads}{', interrupted' if stopped else ''}")


def _check(console: Console, target: Target, file: Path, seconds: float, job_round: JobRound | None) -> None:
    try:
        known = Profile.from_json(read_text(file))
        known.check(target.subject)
        fits = {size: fit(known, size) for size in {*known.tensor_parallel_sizes, target.sizes[0]}}
    except Unusable as error:
        raise fail(str(error)) from None
    except ProfileError as error:
        raise fail(f"--check {file}: {error}") from None
    with _observer(console, seconds) as observer:
        played = _measured(lambda: target.run_rounds(observer))
    if not played:
        raise fail("interrupted before a round was over", INTERRUPTED)
    fitted = fits[target.sizes[0]]
    table = Table(title=f"rounds against {file}")
    for column in ("responses", "tokens", "seconds", "predicted", "error"):
        table.add_column(column, justify="right")
    errors = []
    for one in played:
        expected = predict_round(fitted.latency, fitted.kv_tokens, one)
        errors.append(expected / one.seconds - 1)
        row = (len(one.lengths), sum(one.lengths), f"{one.seconds:.3g}", f"{expected:.3g}", f"{errors[-1]:+.1%}")
        table.add_row(*map(str, row))
    console.print(table)
    say(console, f"median error {median(map(abs, errors)):.1%}")
    if job_round is not None:
        show(console, job_round.start(fits), job_round.job.spec.rollout.tensor_parallel_size)


def _table(measured: Profile, fits: Mapping[int, Fit]) -> Table:
    """Make a table of the fitted performance model, one row a layout."""
    subject = measured.subject
    table = Table(title=f"{subject.model.name} on {subject.engine} {subject.engine_version}, {subject.hardware}")
    columns = ("TP", "KV tokens", "step, ms", "replica", "prefill, ms", "fit off by", "rounds off by")
    for column in columns:
        table.add_column(column, justify="right")
    for size, fitted in fits.items():
        table.add_row(
            str(size),
            str(fitted.kv_tokens),
            _steps(fitted),
            f"{_replica_share(measured, size):.1%}",
            f"{1000 * fitted.latency.prefill_token_seconds:.3g} a token",
            f"{fitted.decode.mean:.1%}",
            _prediction_error(round_errors(measured, fitted, size)),
        )
    return table


def _steps(fitted: Fit) -> str:
    """Return the step time without context for the smallest and the largest batch."""
    (least, quick), (most, slow) = fitted.latency.knots[0], fitted.latency.knots[-1]
    return f"{1000 * quick:.3g} ({least:g}), {1000 * slow:.3g} ({most:g})"


def _replica_share(measured: Profile, size: int) -> float:
    return median(one.replica_seconds / one.seconds for one in measured.decode if one.tensor_parallel == size)


def _prediction_error(errors: list[float]) -> str:
    return f"{median(map(abs, errors)):.1%} of {len(errors)}" if errors else "no round"


def _measured(work: Callable[[], T]) -> T:
    """Do the work; report in one line why it cannot be done."""
    from rljob_runtime.protocols import PeerError

    try:
        return work()
    except (PeerError, ValueError) as error:
        raise fail(str(error)) from None


def _job(file: Path | None, model: str | None) -> RLJob | None:
    if (file is None) == (model is None):
        raise fail("-f JOB.yaml or --model SOURCE; exactly one of the two would be right")
    try:
        return read_job(file) if file is not None else None
    except Unusable as error:
        raise fail(str(error)) from None


def _round(job: RLJob | None, workload: str | None) -> JobRound | None:
    if job is None:
        if workload is not None:
            raise fail(f"--workload {workload}: lengths of a job's round; -f JOB.yaml with it would be right")
        return None
    try:
        return JobRound.of(job, workload)
    except TraceError as error:
        raise fail(f"--workload {workload}: {error}") from None


def _target(
    job: RLJob | None, model: str | None, engine: str | None, tensor_parallel: str | None, seconds: float
) -> Target:
    if engine is not None and engine.lower() not in ENGINES:
        raise fail(f"--engine {engine}: {' or '.join(ENGINES)} would be right")
    source = job.spec.model.source if job is not None else model or ""
    kind = ENGINES[engine.lower()] if engine is not None else str(job.spec.rollout.engine) if job else "VLLM"
    sizes = _sizes(tensor_parallel) if tensor_parallel is not None else None

    from rljob_runtime.models.errors import ModelError
    from rljob_runtime.models.source import cache_folder, resolve
    from rljob_runtime.rollout.profiling.profiler import Limits
    from rljob_runtime.rollout.profiling.target import Target

    try:
        folder = resolve(source, cache_folder())
        if job is not None:
            target = Target.of(job, folder, kind, sizes or job.spec.rollout.tensor_parallel_sizes, seconds)
        else:
            target = Target(folder, source, kind, sizes or (1,), Limits(BATCH, CONTEXT, seconds))
        target.check()
    except (ModelError, ValueError) as error:
        raise fail(str(error)) from None
    return target


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise fail(f"--tensor-parallel {text}: sizes of 1 or more, as 1,2, would be right")
    return sizes


@contextmanager
def _observer(console: Console, seconds: float) -> Iterator[ProfilingObserver]:
    """Show a bar of the time spent, and treat Ctrl-C as a request to stop."""
    from rljob_runtime.rollout.profiling.profiler import ProfilingObserver

    interrupted: list[int] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=seconds)

        def report(doing: str, spent: float) -> None:
            progress.update(bar, description=doing, completed=min(seconds, spent))

        before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))
        try:
            yield ProfilingObserver(report, lambda: bool(interrupted))
        finally:
            signal.signal(signal.SIGINT, before)
