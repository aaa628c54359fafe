"""Summary: the statistics of a trace or generator that decide which technique pays.

- mean over longest of a step: how empty engines run at its end; tail batching pays if it is small;
- within-prompt correlation: whether long responses come from hard prompts (near 1) or by chance (near 0);
- responses at the longest length: a plateau at the cap, where a race gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_runtime.workloads.quantile_distribution import Floats
from rljob_runtime.workloads.trace import Step


@dataclass(frozen=True)
class Quantiles:
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, sample: Sequence[float] | npt.NDArray[np.float64]) -> Quantiles | None:
        """Compute quantiles; None for an empty sample."""
        values = np.asarray(sample, dtype=np.float64)
        if not len(values):
            return None
        p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
        return cls(float(values.mean()), p50, p90, p99, float(values.max()))


@dataclass(frozen=True)
class StepStatistics:
    step: int
    prompts: int
    responses: int
    output_tokens: Quantiles
    mean_over_longest: float


@dataclass(frozen=True)
class TraceStatistics:
    """Statistics of a trace. Shares and correlations are at most 1; None if not recorded."""

    task: str
    prompts: int
    responses: int
    input_tokens: Quantiles
    output_tokens: Quantiles
    longest_fifth_share: float
    """Share of all generated tokens in the longest 20 % of responses."""
    at_longest_share: float
    """Share of responses as long as the longest."""
    mean_over_longest: float
    """Mean over steps."""
    within_prompt_correlation: float | None
    within_prompt_correlation_log: float | None
    """Of log lengths, which a few runaways do not dominate."""
    turns: Quantiles
    tool_calls: int
    tool_call_seconds: Quantiles | None
    tool_answer_tokens: Quantiles | None
    reward_seconds: Quantiles | None
    kept_share: float | None
    steps: tuple[StepStatistics, ...]


def summarise(task: str, steps: Iterable[Step]) -> TraceStatistics:
    """Summarise steps in one pass without keeping them, so a trace need not fit in memory.

    Raises ValueError without a step."""
    inputs: list[int] = []
    groups: list[Floats] = []
    turns: list[int] = []
    call_seconds: list[float] = []
    answer_tokens: list[int] = []
    reward_seconds: list[float] = []
    kept: list[bool] = []
    by_step: list[StepStatistics] = []
    for step in steps:
        first = len(groups)
        for prompt in step.prompts:
            inputs.append(prompt.input_tokens)
            groups.append(np.array([response.output_tokens for response in prompt.responses], dtype=np.float64))
            kept += [] if prompt.kept is None else [prompt.kept]
            for response in prompt.responses:
                turns.append(len(response.turns))
                reward_seconds += [] if response.reward_seconds is None else [response.reward_seconds]
                call_seconds += [call.seconds for turn in response.turns for call in turn.calls]
                answer_tokens += [call.tokens for turn in response.turns for call in turn.calls]
        by_step.append(_step_statistics(step.number, groups[first:]))
    input_tokens = _some(inputs)
    lengths = np.concatenate(groups)
    return TraceStatistics(
        task=task,
        prompts=len(groups),
        responses=len(lengths),
        input_tokens=input_tokens,
        output_tokens=_some(lengths),
        longest_fifth_share=longest_share(lengths, 0.2),
        at_longest_share=float((lengths == lengths.max()).mean()),
        mean_over_longest=float(np.mean([step.mean_over_longest for step in by_step])),
        within_prompt_correlation=intraclass_correlation(groups),
        within_prompt_correlation_log=intraclass_correlation([np.log(group) for group in groups]),
        turns=_some(turns),
        tool_calls=len(call_seconds),
        tool_call_seconds=Quantiles.of(call_seconds),
        tool_answer_tokens=Quantiles.of(answer_tokens),
        reward_seconds=Quantiles.of(reward_seconds),
        kept_share=float(np.mean(kept)) if kept else None,
        steps=tuple(by_step),
    )


def _step_statistics(number: int, groups: list[Floats]) -> StepStatistics:
    lengths = np.concatenate(groups)
    filled = float(lengths.mean() / lengths.max())
    return StepStatistics(number, len(groups), len(lengths), _some(lengths), filled)


def _some(sample: Sequence[float] | Floats) -> Quantiles:
    found = Quantiles.of(sample)
    if found is None:
        raise ValueError("statistics of no responses; one step with one prompt or more would be right")
    return found


def longest_share(lengths: Floats, fraction: float) -> float:
    """Return the share of the sum in the longest `fraction` of the values; a value on the border counts in part."""
    ordered = np.sort(lengths)[::-1]
    count = fraction * len(ordered)
    whole = int(count)
    part = ordered[whole] * (count - whole) if whole < len(ordered) else 0.0
    return float((ordered[:whole].sum() + part) / ordered.sum())


def intraclass_correlation(groups: Sequence[Floats]) -> float | None:
    """Return ICC(1) of groups of any sizes: 1 if the group determines the value, 0 if it does not (below 0 by chance).

    None if undefined: for one group, or without a group of two members."""
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    total = sizes.sum()
    if len(groups) < 2 or total <= len(groups):
        return None
    means = np.array([group.mean() for group in groups])
    grand = (sizes * means).sum() / total
    size = (total - (sizes**2).sum() / total) / (len(groups) - 1)
    between = (sizes * (means - grand) ** 2).sum() / (len(groups) - 1)
    within = sum(((group - mean) ** 2).sum() for group, mean in zip(groups, means, strict=True)) / (total - len(groups))
    spread = between + (size - 1) * within
    return float((between - within) / spread) if spread > 0 else None
