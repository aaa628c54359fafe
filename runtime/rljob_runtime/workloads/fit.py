"""Fit: a generator's parameters from a trace, distributions by quantiles, correlations by matching the trace's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from rljob_runtime.workloads.generator import Generator
from rljob_runtime.workloads.parameters import ToolUse, WorkloadParameters
from rljob_runtime.workloads.quantile_distribution import Distribution, Floats, TurnCounts, fit_distribution
from rljob_runtime.workloads.summary import intraclass_correlation
from rljob_runtime.workloads.trace import Trace
from rljob_runtime.workloads.workload import Prompt, Response, batch

_PROMPTS, _RESPONSES, _HALVINGS = 800, 8, 9
"""Samples for finding a correlation: accurate to about 0.02, which is below the uncertainty of such a trace."""
_SHORTEST_SECONDS = 1e-4
"""Distributions are of positive numbers, and a call that was refused immediately took no time."""

Measure = Callable[[Sequence[Prompt]], float | None]


def fit(trace: Trace, source: str) -> WorkloadParameters:
    """Fit the parameters of all steps of a trace. `source` states the trace's origin.

    Raises ValueError if the trace has fewer than two prompts, or no prompt with two responses."""
    prompts = trace.pooled().steps[0].prompts
    rewards = [response.reward_seconds for response in trace.responses() if response.reward_seconds is not None]
    kept = [prompt.kept for prompt in prompts if prompt.kept is not None]
    parameters = WorkloadParameters(
        task=trace.task,
        source=source,
        input_tokens=fit_distribution(np.array([prompt.input_tokens for prompt in prompts])),
        output_tokens=fit_distribution(np.array([response.turns[-1].tokens for response in trace.responses()])),
        correlation=0,
        reward_seconds=_seconds_distribution(rewards) if rewards else None,
        kept_share=sum(kept) / len(kept) if kept else None,
        tool_use=_tool_use(trace),
    )
    parameters = _correlate(parameters, prompts)
    return parameters.model_copy(update={"input_correlation": _input_correlation(prompts, parameters.correlation)})


def _tool_use(trace: Trace) -> ToolUse | None:
    calls = list(trace.tool_calls())
    if not calls:
        return None
    counts = np.bincount([len(response.turns) for response in trace.responses()])[1:]
    return ToolUse(
        turns=TurnCounts(weights=tuple((counts / counts.sum()).round(5).tolist())),
        turns_correlation=0,
        call_tokens=fit_distribution(
            np.array([turn.tokens for turns in trace.responses() for turn in turns.turns[:-1]])
        ),
        answer_tokens=fit_distribution(np.maximum(1, [call.tokens for call in calls])),
        seconds=_seconds_distribution([call.seconds for call in calls]),
    )


def _seconds_distribution(seconds: Sequence[float]) -> Distribution:
    return fit_distribution(np.maximum(_SHORTEST_SECONDS, seconds))


def _correlate(parameters: WorkloadParameters, prompts: Sequence[Prompt]) -> WorkloadParameters:
    """Fit the correlation of turns first: the similarity of total lengths depends on it."""
    tool_use = parameters.tool_use
    if tool_use is not None:

        def with_turns(correlation: float) -> WorkloadParameters:
            changed = tool_use.model_copy(update={"turns_correlation": correlation})
            return parameters.model_copy(update={"tool_use": changed})

        parameters = _matching(with_turns, _similarity(lambda response: len(response.turns)), prompts)
    base = parameters
    return _matching(
        lambda correlation: base.model_copy(update={"correlation": correlation}),
        _similarity(lambda response: np.log(response.output_tokens)),
        prompts,
    )


def _similarity(of: Callable[[Response], float]) -> Measure:
    def measure(prompts: Sequence[Prompt]) -> float | None:
        return intraclass_correlation([np.array([of(response) for response in prompt.responses]) for prompt in prompts])

    return measure


def _matching(
    make: Callable[[float], WorkloadParameters], measure: Measure, prompts: Sequence[Prompt]
) -> WorkloadParameters:
    """Return the parameters whose generated prompts have the recorded measure, by bisection.

    The measure rises with the correlation, and all trials share their random numbers."""
    target = measure(prompts)
    if target is None:
        raise ValueError("no two responses of one prompt: how alike they are cannot be fitted")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        measured = measure(batch(Generator(make(middle)), 0, _PROMPTS, _RESPONSES).prompts)
        low, high = (low, middle) if measured is None or measured > target else (middle, high)
    return make(round((low + high) / 2, 3) if high > 2**-_HALVINGS else 0.0)


def _input_correlation(prompts: Sequence[Prompt], correlation: float) -> float:
    """Return the correlation of a prompt's length with its hardness, in scores.

    The observed correlation is with the mean of its responses' scores, which noise dilutes. If the prompt determines
    almost nothing, dividing by the dilution would amplify noise only."""
    size = float(np.mean([len(prompt.responses) for prompt in prompts]))
    visible = float(np.sqrt(correlation / (correlation + (1 - correlation) / size))) if correlation else 0.0
    if visible < 0.5:
        return 0.0
    lengths = _normal_scores(np.array([prompt.input_tokens for prompt in prompts], dtype=np.float64))
    hardness = _normal_scores(
        np.array([np.mean(np.log([response.output_tokens for response in prompt.responses])) for prompt in prompts])
    )
    if lengths.std() == 0 or hardness.std() == 0:
        return 0.0
    seen = float(np.corrcoef(lengths, hardness)[0, 1])
    return round(float(np.clip(seen / visible, -1, 1)), 3)


def _normal_scores(values: Floats) -> Floats:
    """Return normal scores of the ranks; equal values share their mean rank."""
    unique, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - counts / 2
    scores = np.array([NormalDist().inv_cdf(float(rank) / len(values)) for rank in ranks])
    return scores[inverse] if len(unique) > 1 else np.zeros(len(values))
