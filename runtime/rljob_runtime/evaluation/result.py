"""Evaluation result: the statistics of one evaluation of one weight version, as a line of JSON.

A reader ignores fields that it does not know, so that files of later versions stay readable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import fsum
from typing import Any

from pydantic.alias_generators import to_camel, to_snake

from rljob_runtime.evaluation.estimates import PASS_REWARD, Estimate, average_at_k, default_ks, pass_at_k, passes


@dataclass(frozen=True)
class SampleScore:
    """One scored response. `reward` is the weighted sum, `rewards` each rule's value before its weight.

    `cut`: whether it ended at the limit of tokens. A response that failed has no score.
    """

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 0
    cut: bool = False


@dataclass(frozen=True)
class EvaluationTimes:
    """The cost of an evaluation, in seconds.

    `seconds`: from its first request to its last score. `idle_seconds`: of generation on machines that had nothing else
    to do, summed over machines. `waiting_seconds`: for which training waited.
    """

    seconds: float = 0.0
    idle_seconds: float = 0.0
    waiting_seconds: float = 0.0


@dataclass(frozen=True)
class EvaluationResult:
    """The statistics of one evaluation of one weight version.

    `failed` counts responses that were asked for and have no score. `missing_prompts` counts prompts without any score.
    An average without scores, or an error with fewer than two prompts, is None.
    """

    name: str
    round: int
    """Updates that the weights have: 0 before the first round."""
    weight_version: int
    prompts: int
    """Prompts that were asked, missing ones included."""
    responses_per_prompt: int
    failed: int = 0
    missing_prompts: int = 0
    average: float | None = None
    """avg@k: the mean reward; k is `responses_per_prompt`."""
    average_error: float | None = None
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """pass@k by k, for each k that at least one prompt has enough responses for."""
    rules: Mapping[str, float] = field(default_factory=dict)
    """Mean of each rule's value, over prompts."""
    mean_tokens: float = 0.0
    cut_share: float = 0.0
    times: EvaluationTimes = EvaluationTimes()

    @property
    def key(self) -> tuple[str, int]:
        """Identity within a job's history: name and round."""
        return self.name, self.round

    @property
    def pass_at_most(self) -> tuple[int, Estimate] | None:
        """The largest k with its pass@k; None without one."""
        return max(self.pass_at.items(), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values in camelCase; absent instead of null. Times are fields of the result."""
        values = {**asdict(self), **asdict(self.times)}
        del values["times"]
        values["pass_at"] = {str(k): _present(asdict(one)) for k, one in sorted(self.pass_at.items())}
        return _present({to_camel(name): value for name, value in values.items()})

    def to_json(self) -> str:
        """Return one line without its end."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvaluationResult:
        """Read what `to_dict` returned. Raises `ValueError` for anything else."""
        snake = {to_snake(name): value for name, value in values.items()}
        try:
            known = {one.name: snake[one.name] for one in fields(cls) if one.name in snake}
            known["times"] = EvaluationTimes(
                **{one.name: float(snake[one.name]) for one in fields(EvaluationTimes) if one.name in snake}
            )
            known["pass_at"] = {int(k): _estimate(one) for k, one in snake.get("pass_at", {}).items()}
            known["name"], known["round"] = str(known["name"]), int(known["round"])
            return cls(**known)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an evaluation: {error}") from None

    @classmethod
    def from_json(cls, line: str) -> EvaluationResult:
        """Read a line. Raises `ValueError` for an incomplete one."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not an evaluation: an object would be right")
        return cls.from_dict(values)


@dataclass(frozen=True)
class Evaluated:
    """What was evaluated: the evaluation's name, the weights, and the number of responses that each prompt should have.

    A response with a reward of at least `pass_reward` passes.
    """

    name: str
    round: int
    weight_version: int
    responses_per_prompt: int
    pass_reward: float = PASS_REWARD


def summarize(
    evaluated: Evaluated,
    scores: Mapping[Any, Sequence[SampleScore]],
    times: EvaluationTimes = EvaluationTimes(),  # noqa: B008  a frozen value
) -> EvaluationResult:
    """Return the statistics of the scores of each prompt.

    `scores` has every prompt of the evaluation, by any key; one whose responses all failed has an empty sequence. A
    mean is one of means by prompt, so that a prompt with failed responses counts as much as any other.
    """
    by_prompt = list(scores.values())
    scored = sum(map(len, by_prompt))
    average = average_at_k([[one.reward for one in each] for each in by_prompt])
    passed = [[passes(one.reward, evaluated.pass_reward) for one in each] for each in by_prompt]
    pass_at = {k: pass_at_k(passed, k) for k in default_ks(evaluated.responses_per_prompt)}
    return EvaluationResult(
        name=evaluated.name,
        round=evaluated.round,
        weight_version=evaluated.weight_version,
        prompts=len(by_prompt),
        responses_per_prompt=evaluated.responses_per_prompt,
        failed=len(by_prompt) * evaluated.responses_per_prompt - scored,
        missing_prompts=average.missing,
        average=average.value,
        average_error=average.error,
        pass_at={k: one for k, one in pass_at.items() if one.prompts},
        rules=_rules(by_prompt),
        mean_tokens=_mean_by_prompt([[one.tokens for one in each] for each in by_prompt]),
        cut_share=_mean_by_prompt([[one.cut for one in each] for each in by_prompt]),
        times=times,
    )


def _rules(by_prompt: Sequence[Sequence[SampleScore]]) -> dict[str, float]:
    """Return the mean of each rule, in the order of its first score. A response need not have a value for each."""
    names = dict.fromkeys(name for each in by_prompt for one in each for name in one.rewards)
    return {
        name: _mean_by_prompt([[one.rewards[name] for one in each if name in one.rewards] for each in by_prompt])
        for name in names
    }


def _mean_by_prompt(values: Sequence[Sequence[float]]) -> float:
    """Return the mean of the means of each prompt that has values; 0 without any."""
    means = [fsum(each) / len(each) for each in values if each]
    return fsum(means) / len(means) if means else 0.0


def _estimate(values: Mapping[str, Any]) -> Estimate:
    return Estimate(values.get("value"), values.get("error"), values["prompts"], values["missing"])


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
