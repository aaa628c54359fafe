"""Lengths: the prompts that all systems of a comparison are given."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

from rljob_bench.async_systems.groups import Prompts
from rljob_runtime.simulator.peers.assumptions import LAMINAR_JOB, LaminarJob, LaminarLengths
from rljob_runtime.workloads import (
    Generator,
    Replay,
    TraceError,
    Workload,
    WorkloadParameters,
    open_workload,
    read_trace,
    traces_in,
)
from rljob_runtime.workloads.quantile_distribution import Distribution
from rljob_runtime.workloads.scaled import Scaled


def workload_of(lengths: LaminarLengths, seed: int, longest: int = LAMINAR_JOB.longest_response) -> Workload:
    """Return the workload that draws them."""
    if lengths.generator is None:
        return Generator(_lognormal(lengths, longest), seed)
    drawn = open_workload(lengths.generator, seed)
    return drawn if lengths.longest is None else Scaled(drawn, lengths.longest, longest)


def prompts_of(workload: Workload, job: LaminarJob = LAMINAR_JOB) -> Prompts:
    """Return prompts as many and as long as the job has them."""
    return Prompts(workload, job.prompts, job.responses, job.longest_prompt, job.longest_response)


def recorded(folder: Path, seed: int) -> dict[str, Workload]:
    """Return the trace in `folder`, or all traces in folders of it, by name; step follows step. Raises `TraceError`."""
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder; one of a trace, or one that holds folders of traces, would be right")
    traces = [read_trace(path) for path in traces_in(folder) or [folder]]
    return {trace.task: Replay(trace, seed) for trace in traces}


def _lognormal(lengths: LaminarLengths, longest: int) -> WorkloadParameters:
    body = NormalDist(math.log(lengths.median), lengths.sigma)
    return WorkloadParameters(
        task=lengths.name,
        source=lengths.source,
        input_tokens=Distribution.lognormal(median=150, sigma=0.3),
        output_tokens=Distribution.from_cdf(lambda tokens: body.cdf(math.log(tokens)), 1, longest),
        correlation=lengths.correlation,
    )
