"""Workloads: PolyTrace's traces, read and replayed, and generators fitted to them."""

from rljob_runtime.workloads.catalog import names, open_workload, parameters
from rljob_runtime.workloads.errors import Findings, TraceError
from rljob_runtime.workloads.generator import Generator
from rljob_runtime.workloads.parameters import WorkloadParameters
from rljob_runtime.workloads.replay import RecordedToolLatencies, Replay
from rljob_runtime.workloads.trace import Step, Trace, read_steps, read_trace, step_file, traces_in
from rljob_runtime.workloads.workload import Batch, Prompt, Response, ToolCall, Turn, Workload, batch

__all__ = [
    "Batch",
    "Findings",
    "Generator",
    "Prompt",
    "RecordedToolLatencies",
    "Replay",
    "Response",
    "Step",
    "ToolCall",
    "Trace",
    "TraceError",
    "Turn",
    "Workload",
    "WorkloadParameters",
    "batch",
    "names",
    "open_workload",
    "parameters",
    "read_steps",
    "read_trace",
    "step_file",
    "traces_in",
]
