"""Group metrics: rewards and lengths of what a round was trained on, the fields of its report that show how RL goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from rljob_api.status import RoundReport, RuleReward, SourceReport
from rljob_runtime.protocols.rewards import Terms
from rljob_runtime.protocols.trajectory import FinishReason, Group, TrajectoryKey
from rljob_runtime.scheduling.status_cadence import rounded

QUANTILES = {"response_tokens_p50": 0.5, "response_tokens_p90": 0.9, "response_tokens_p99": 0.99}
"""Fields of the report by the quantile that they show."""


def with_group_metrics(
    report: RoundReport, groups: Sequence[Group], terms: Mapping[TrajectoryKey, Terms]
) -> RoundReport:
    """Add the metrics of the groups that were trained on to their report. `terms`: by response, absent for some.

    Its time grows with the responses, so the event loop must not call it."""
    if not groups:
        return report
    responses = [scored.response for group in groups for scored in group.responses]
    spreads = [pstdev([scored.reward for scored in group.responses]) for group in groups]
    equal = [len({scored.reward for scored in group.responses}) == 1 for group in groups]
    cut = sum(response.finish_reason is FinishReason.LENGTH for response in responses)
    lengths = sorted(len(response.token_ids) for response in responses)
    return report.model_copy(
        update={
            "reward_rules": _rules([terms[response.key] for response in responses if response.key in terms]),
            "sources": _sources(groups),
            "group_reward_deviation": rounded(fmean(spreads)),
            "equal_reward_groups": rounded(sum(equal) / len(groups)),
            "truncated_responses": rounded(cut / len(responses)),
            **{name: quantile(lengths, share) for name, share in QUANTILES.items()},
        }
    )


def _sources(groups: Sequence[Group]) -> tuple[SourceReport, ...] | None:
    """Return the prompts of each named source and their mean reward, by name; None without named sources."""
    rewards: dict[str, list[list[float]]] = {}
    for group in groups:
        rewards.setdefault(group.prompt.source, []).append([scored.reward for scored in group.responses])
    return (
        tuple(
            SourceReport(name=name, prompts=len(found), reward=rounded(fmean(one for each in found for one in each)))
            for name, found in sorted(rewards.items())
            if name
        )
        or None
    )


def quantile(rising: Sequence[int], share: float) -> int:
    """Return the nearest-rank quantile: the smallest value that `share` of all do not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.99)
    (2, 4)
    """
    return rising[max(0, math.ceil(share * len(rising)) - 1)]


def _rules(found: Sequence[Terms]) -> tuple[RuleReward, ...]:
    """Return mean and population standard deviation of each rule, in the order of `spec.rewards`."""
    values: dict[str, list[float]] = {}
    for terms in found:
        for name, value in terms.items():
            values.setdefault(name, []).append(value)
    return tuple(
        RuleReward(name=name, mean=rounded(fmean(each)), deviation=rounded(pstdev(each)))
        for name, each in values.items()
    )
