"""`rljob simulate`: runs small jobs under virtual time, each with its own faults, until an invariant breaks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rljob_api.spec.training import Mode
from rljob_runtime.cli.files import fail
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.drawn_scenario import draw_scenario, draw_switching, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan, shrink
from rljob_runtime.simulator.run import SimulationResult
from rljob_runtime.simulator.run import simulate as run_simulation
from rljob_runtime.simulator.scenario import Scenario
from rljob_runtime.simulator.trace import Timeline

# Seeds in one portion of a worker.
_PORTION = 8


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    plan: Annotated[
        str | None,
        typer.Option(
            help='Faults to apply instead of the seed\'s own: `TIME KIND TARGET DURATION; ...`, or "" for none.'
        ),
    ] = None,
    trace_out: Annotated[
        Path | None, typer.Option(help="Write the run, or the failing one, as a timeline for ui.perfetto.dev.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of parallel processes.")] = 1,
    mode: Annotated[Mode, typer.Option(help="Mode of the jobs.")] = Mode.ON_POLICY,
    switches: Annotated[bool, typer.Option(help="Only jobs whose machines switch their layout inside rounds.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0, help="After these seeds, run further ones until this many seconds have passed.")
    ] = 0,
) -> None:
    """Run the real coordinator under virtual time with seeded faults, and check its invariants after every event.

    Every seed defines a job, machines and faults. The plan of the first failing seed is shrunk as long as it fails, and
    printed with the command that repeats it. Exit status: 0 if all invariants hold, 1 if one does not.
    """
    if plan is not None and (seeds != 1 or seconds):
        raise fail("--plan is for one seed: --seeds 1 --seed N would be right")
    if switches and mode is not Mode.ON_POLICY:
        raise fail("--switches is for --mode OnPolicy: machines of other modes keep their layout inside rounds")
    draw = draw_switching if switches else partial(draw_scenario, mode=mode)
    try:
        faults = None if plan is None else FaultPlan.parse(plan)
    except ValueError as error:
        raise fail(f"--plan: {error}") from None
    if trace_out is not None and not trace_out.absolute().parent.is_dir():
        raise fail(f"--trace-out {trace_out}: {trace_out.absolute().parent} is not a folder")
    # Faults cause the coordinator's warnings, so they are not shown.
    logging.getLogger("rljob_runtime").setLevel(logging.CRITICAL)
    console = screen()
    failed = _first_failing(console, seed, portions(seed, seeds, seconds, jobs), jobs, faults, draw)
    if trace_out is not None:
        _trace(failed if failed is not None else seed, faults, trace_out, draw)
        say(console, f"timeline of seed {failed if failed is not None else seed}: {trace_out}")
    if failed is None:
        return
    _explain(console, failed, faults, draw, "--switches" if switches else f"--mode {mode.value}")
    raise typer.Exit(1)


Draw = Callable[[int], Scenario]
"""Returns the scenario of a seed."""


def portions(
    first: int, count: int, seconds: float, jobs: int, now: Callable[[], float] = time.monotonic
) -> Iterator[range]:
    """Divide seeds into ranges: `count` of them, and then more, while the budget of `seconds` lasts."""
    began = now()
    yield range(first, first + count)
    following = first + count
    while now() - began < seconds:
        yield range(following, following + 2 * jobs)
        following += 2 * jobs


def _first_failing(
    console: Console, first: int, ranges: Iterator[range], jobs: int, faults: FaultPlan | None, draw: Draw
) -> int | None:
    """Simulate the seeds in order, up to one that fails."""
    total = events = coordinators = 0
    seconds = 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress, ProcessPoolExecutor(jobs) as pool:
        bar = progress.add_task("seeds", total=0)
        for seeds in ranges:
            progress.update(bar, total=total + len(seeds))
            for seed, outcome in _outcomes(seeds, jobs, pool, faults, draw):
                total, events, seconds = total + 1, events + outcome.events, seconds + outcome.seconds
                coordinators += outcome.coordinators
                progress.advance(bar)
                if not outcome.passed:
                    pool.shutdown(cancel_futures=True)
                    return seed
    say(
        console,
        f"{total} seeds from {first}: every invariant held after each of {events:,} events, in {seconds / 3600:.1f} "
        f"simulated hours with {coordinators:,} coordinators",
    )
    return None


def _outcomes(
    seeds: range, jobs: int, pool: Executor, faults: FaultPlan | None, draw: Draw
) -> Iterator[tuple[int, SimulationResult]]:
    # A pool of one process would do the same, but a debugger does not follow into it.
    play_all = map if jobs == 1 else partial(pool.map, chunksize=max(1, min(_PORTION, len(seeds) // jobs)))
    count = len(seeds)
    yield from zip(seeds, play_all(_play, seeds, [faults] * count, [draw] * count), strict=True)


def _play(seed: int, faults: FaultPlan | None, draw: Draw) -> SimulationResult:
    scenario = draw(seed)
    return run_simulation(scenario, plan_of(scenario) if faults is None else faults)


def _trace(seed: int, faults: FaultPlan | None, file: Path, draw: Draw) -> None:
    scenario, timeline = draw(seed), Timeline(loop_time)
    run_simulation(scenario, plan_of(scenario) if faults is None else faults, [timeline])
    try:
        timeline.write(file)
    except OSError as error:
        raise fail(f"--trace-out {file} cannot be written: {error.strerror}") from None


def _explain(console: Console, seed: int, faults: FaultPlan | None, draw: Draw, option: str) -> None:
    scenario = draw(seed)
    plan = plan_of(scenario) if faults is None else faults
    with console.status("shrinking the plan"):
        smallest = shrink(plan, lambda smaller: not run_simulation(scenario, smaller).passed)
    outcome = run_simulation(scenario, smallest)
    lines = [
        f"seed {seed} fails. {_size(scenario)}",
        f"  {outcome.violation}",
        f"  faults, {len(smallest.faults)} of {len(plan.faults)}: TIME KIND TARGET DURATION",
        *(f"    {fault}" for fault in smallest.faults),
        "again, with a timeline:",
        f'  rljob simulate {option} --seeds 1 --seed {seed} --plan "{smallest}" --trace-out seed-{seed}.json',
    ]
    say(console, "\n".join(lines))


def _size(scenario: Scenario) -> str:
    edited = f"; edited after {scenario.edit}" if scenario.edit is not None else ""
    return (
        f"{scenario.machines} machines x {scenario.site.replicas} replicas, {scenario.rounds} rounds of "
        f"{scenario.prompts} x {scenario.responses} responses{edited}"
    )
