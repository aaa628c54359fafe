"""Trace plot: lengths of prompts, responses and tools, and the differences between steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rljob_runtime.workloads import Step
from rljob_runtime.workloads.summary import TraceStatistics


def plot(steps: Sequence[Step], statistics: TraceStatistics, file: Path) -> None:
    """Write the picture; the file's suffix selects its format. Raises OSError or ValueError if it cannot be written."""
    responses = [response for step in steps for prompt in step.prompts for response in prompt.responses]
    tool_seconds = [call.seconds for response in responses for turn in response.turns for call in turn.calls]
    figure = Figure(figsize=(15 if tool_seconds else 10, 4), layout="constrained")
    axes = figure.subplots(1, 3 if tool_seconds else 2)
    figure.suptitle(
        f"{statistics.task}: {statistics.responses} responses, "
        f"{statistics.longest_fifth_share:.0%} of the tokens in the longest 20 %"
    )
    _distribution(axes[0], "generated", [response.output_tokens for response in responses])
    _distribution(axes[0], "prompt", [prompt.input_tokens for step in steps for prompt in step.prompts])
    axes[0].set(xlabel="tokens", ylabel="share at most as long", xscale="log")
    axes[0].legend()
    _by_step(axes[1], statistics)
    if tool_seconds:
        _distribution(axes[2], "tool calls", tool_seconds)
        axes[2].set(xlabel="seconds", ylabel="share at most as long", xscale="log")
        axes[2].legend()
    figure.savefig(file)


def _distribution(axis: Any, label: str, sample: Sequence[float]) -> None:
    ordered = np.sort(sample)
    axis.step(ordered, (1 + np.arange(len(ordered))) / len(ordered), where="post", label=label)
    axis.grid(alpha=0.3)


def _by_step(axis: Any, statistics: TraceStatistics) -> None:
    numbers = [step.step for step in statistics.steps]
    for name in ("p50", "p90", "p99", "longest"):
        axis.plot(numbers, [getattr(step.output_tokens, name) for step in statistics.steps], marker=".", label=name)
    axis.set(xlabel="step", ylabel="generated tokens", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
