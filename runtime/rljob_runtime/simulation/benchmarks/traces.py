"""Recorded traces as settings: which model a trace is played on, and on how many accelerators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rljob_runtime.simulation.assumptions import SETTINGS, Setting
from rljob_runtime.workloads import Trace, TraceError, read_trace, traces_in


def trace_settings(folder: Path) -> tuple[Setting, ...]:
    """The trace in `folder`, or all that are in folders of it. Raises `TraceError`."""
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder; one of a trace, or one that holds folders of traces, would be right")
    return tuple(setting_of(path) for path in traces_in(folder) or [folder])


def small(setting: Setting) -> Setting:
    """For a quick look."""
    return replace(setting, prompts=16, responses=4)


def setting_of(folder: Path) -> Setting:
    """The setting whose model has the size in the folder's name (`-7b`, `-14b`, `-32b`); for another name the one whose
    responses are about as long."""
    trace = read_trace(folder)
    longest = max(response.output_tokens for response in trace.responses())
    base = _by_name(trace) or next((each for each in SETTINGS if longest <= each.longest), SETTINGS[-1])
    return replace(
        base,
        name=trace.task,
        workload=str(folder.resolve()),
        longest=longest,
        source=f"lengths of {trace.task}; the layout of {base.name}",
    )


def _by_name(trace: Trace) -> Setting | None:
    parts = trace.task.lower().split("-")
    return next((each for each in SETTINGS if each.name.partition("-")[0] in parts), None)
