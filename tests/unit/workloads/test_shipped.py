"""The shipped generators against the traces they were fitted to. `RLJOB_TRACES` names the folder that holds them.

A generated quantile is compared with the recorded one, which is a draw itself: the tolerance is that of the number of
prompts recorded, not of the distribution.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.workloads import Generator, Replay, Step, batch, parameters, read_trace
from rljob_runtime.workloads.summary import TraceStatistics, summarise

TRACES = os.environ.get("RLJOB_TRACES")
pytestmark = pytest.mark.skipif(
    not TRACES, reason="RLJOB_TRACES names no folder of PolyTrace traces (they are not ours)"
)

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
TOLERANCE = {"dapo-32b": 0.08, "video-7b": 0.08, "deepcoder-14b-16k": 0.2, "search-r1-7b": 0.25}
"""Largest relative error of a quantile; 384, 640, 48 and 50 recorded prompts."""


def lengths_of(steps: tuple[Step, ...]) -> np.ndarray:
    return np.array([r.output_tokens for step in steps for prompt in step.prompts for r in prompt.responses])


def recorded(name: str) -> tuple[Step, ...]:
    assert TRACES is not None
    return read_trace(Path(TRACES) / name).steps


def generated(name: str) -> tuple[Step, ...]:
    generator = Generator(parameters(name), seed=5)
    return tuple(Step(step, batch(generator, step, 128, 8).prompts) for step in range(25))


@pytest.mark.parametrize("name", TOLERANCE)
def test_generator_has_the_quantiles_of_its_trace(name: str) -> None:
    found = np.quantile(lengths_of(generated(name)), QUANTILES)
    assert found == pytest.approx(np.quantile(lengths_of(recorded(name)), QUANTILES), rel=TOLERANCE[name])


@pytest.mark.parametrize("name", TOLERANCE)
def test_generator_has_the_similarity_of_its_trace(name: str) -> None:
    found, trace = (summarise(name, steps) for steps in (generated(name), recorded(name)))
    assert found.within_prompt_correlation_log == pytest.approx(trace.within_prompt_correlation_log, abs=0.06)
    # Of plain lengths: a few runaways of the trace decide it.
    assert found.within_prompt_correlation == pytest.approx(trace.within_prompt_correlation, abs=0.1)
    assert found.longest_fifth_share == pytest.approx(trace.longest_fifth_share, abs=0.06)
    assert found.output_tokens.mean == pytest.approx(trace.output_tokens.mean, rel=0.06)


def test_tools_and_rewards_have_the_quantiles_of_their_traces() -> None:
    def tools(steps: tuple[Step, ...]) -> TraceStatistics:
        return summarise("search-r1-7b", steps)

    found, trace = tools(generated("search-r1-7b")), tools(recorded("search-r1-7b"))
    assert found.tool_call_seconds is not None
    assert trace.tool_call_seconds is not None
    assert found.tool_call_seconds.mean == pytest.approx(trace.tool_call_seconds.mean, rel=0.05)
    assert found.tool_call_seconds.p90 == pytest.approx(trace.tool_call_seconds.p90, rel=0.1)
    assert found.turns.mean == pytest.approx(trace.turns.mean, rel=0.05)
    coding, coding_trace = (summarise("", f("deepcoder-14b-16k")) for f in (generated, recorded))
    assert coding.reward_seconds is not None
    assert coding_trace.reward_seconds is not None
    assert coding.reward_seconds.p50 == pytest.approx(coding_trace.reward_seconds.p50, rel=0.1)
    assert coding.at_longest_share == pytest.approx(coding_trace.at_longest_share, abs=0.04)


@pytest.mark.parametrize("name", TOLERANCE)
def test_replay_has_the_similarity_of_its_trace(name: str) -> None:
    assert TRACES is not None
    trace = read_trace(Path(TRACES) / name)
    replay = Replay(trace.pooled(), seed=1)
    found = summarise(name, [Step(step, batch(replay, step, 128, 8).prompts) for step in range(10)])
    whole = summarise(name, trace.steps)
    assert found.within_prompt_correlation_log == pytest.approx(whole.within_prompt_correlation_log, abs=0.05)
    assert found.output_tokens.mean == pytest.approx(whole.output_tokens.mean, rel=0.05)
