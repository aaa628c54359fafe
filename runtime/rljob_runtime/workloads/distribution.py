"""Distribution: reads PolyTrace's `enhanced_task_distribution_parameters.json`.

The file has the fitted parameters of its two 235B workloads. Its own lognormal of the math outputs is far off (mean
1.1k against 9.6k), so `gmm_parameters` are used. For tool use the file has only means and covariances by number of
calls. Gaussians would make many lengths negative, so lognormals with the same means and variances are used. The file
contains neither the similarity within prompts nor tool latencies: both are arguments here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rljob_runtime.workloads.errors import TraceError
from rljob_runtime.workloads.parameters import ToolUse, WorkloadParameters
from rljob_runtime.workloads.quantile_distribution import Distribution, TurnCounts
from rljob_runtime.workloads.rows import explain

_NORMAL = NormalDist()
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pair = tuple[Finite, Finite]
Component = tuple[float, float, float]
"""(weight, mean, standard deviation), of tokens or of their logarithm."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MathMixture(_Part):
    """A Gaussian mixture of (input, output) tokens."""

    weights: Annotated[list[Positive], Field(min_length=1)]
    means: list[Pair]
    covariances: list[tuple[Pair, Pair]]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not len(self.weights) == len(self.means) == len(self.covariances):
            raise ValueError(
                f"{len(self.weights)} weights, {len(self.means)} means, {len(self.covariances)} covariances; "
                "as many of each would be right"
            )
        if any(matrix[axis][axis] <= 0 for matrix in self.covariances for axis in (0, 1)):
            raise ValueError("a covariance has a variance that is not above 0")
        return self

    def marginal(self, axis: int) -> list[Component]:
        parts = zip(self.weights, self.means, self.covariances, strict=True)
        return [(weight, mean[axis], math.sqrt(matrix[axis][axis])) for weight, mean, matrix in parts]


class _Joint(_Part):
    correlation: Annotated[float, Field(ge=-1, le=1)]


class _MathTask(_Part):
    gmm_parameters: MathMixture
    joint_distribution: _Joint


class CallSequence(_Part):
    """Sessions with one number of model calls: mean and covariance of `feature_names` (input_1 …, output_1 …, …)."""

    feature_names: list[str]
    mean_vector: list[Finite]
    covariance_matrix: list[list[Finite]]

    @model_validator(mode="after")
    def _square(self) -> Self:
        size = len(self.feature_names)
        if len(self.mean_vector) != size or [len(row) for row in self.covariance_matrix] != [size] * size:
            raise ValueError(f"{size} feature_names; a mean_vector of {size} and as many rows and columns are right")
        return self

    def lognormal(self, feature: str, weight: float) -> Component:
        """Return (weight, mean, standard deviation) of the logarithm, from the feature's mean and variance."""
        place = self.feature_names.index(feature)
        mean, variance = self.mean_vector[place], self.covariance_matrix[place][place]
        spread = math.log1p(variance / mean**2)
        return weight, math.log(mean) - spread / 2, math.sqrt(spread)


class _ToolTask(_Part):
    call_count_distribution: Annotated[dict[Annotated[int, Field(ge=1)], Positive], Field(min_length=1)]
    sequence_models: dict[int, CallSequence]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for count in self.call_count_distribution:
            if count not in self.sequence_models:
                raise ValueError(f"sequence_models has no model of {count} calls")
            model = self.sequence_models[count]
            for name in (f"{kind}_{call}" for kind in ("input", "output") for call in range(1, count + 1)):
                if name not in model.feature_names:
                    raise ValueError(f"sequence_models.{count} has no feature {name}")
                place = model.feature_names.index(name)
                if model.mean_vector[place] <= 0 or model.covariance_matrix[place][place] <= 0:
                    raise ValueError(f"sequence_models.{count}: mean and variance of {name} are not above 0")
        return self


class DistributionParameters(_Part):
    """The used part of the file."""

    math_task: _MathTask
    tool_calling_task: _ToolTask

    @classmethod
    def load(cls, path: Path) -> DistributionParameters:
        """Read the file. Raises `TraceError` with file and field."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise TraceError(f"{path}: {explain(error)}") from error

    def math(self, correlation: float, cap: int) -> WorkloadParameters:
        """Return single-turn math with lengths from 1 to `cap` tokens; `correlation` as in `WorkloadParameters`."""
        mixture = self.math_task.gmm_parameters
        return WorkloadParameters(
            task="math-235b",
            source=f"PolyTrace gmm_parameters; cap {cap} as in its Fig. 9; correlation {correlation} assumed",
            input_tokens=_gaussians(mixture.marginal(0), cap),
            output_tokens=_gaussians(mixture.marginal(1), cap),
            correlation=correlation,
            input_correlation=self.math_task.joint_distribution.correlation,
        )

    def tool_use(self, correlation: float, seconds: Distribution, cap: int) -> WorkloadParameters:
        """Return multi-turn tool use: model calls are turns, and the input of each but the first is the tool's answer.

        Lengths of turns are independent here; in the file they depend slightly on each other."""
        task = self.tool_calling_task
        counts = task.call_count_distribution
        weights = tuple(counts.get(count, 0.0) for count in range(1, max(counts) + 1))

        def mixture(names: dict[int, list[str]]) -> Distribution:
            models = task.sequence_models
            return _lognormals(
                [models[count].lognormal(name, counts[count]) for count in counts for name in names[count]], cap
            )

        return WorkloadParameters(
            task="tools-235b",
            source=f"PolyTrace sequence_models; correlation {correlation} assumed; tool seconds of another trace",
            input_tokens=mixture({count: ["input_1"] for count in counts}),
            output_tokens=mixture({count: [f"output_{count}"] for count in counts}),
            correlation=correlation,
            tool_use=ToolUse(
                turns=TurnCounts(weights=weights),
                turns_correlation=correlation,
                call_tokens=mixture({count: [f"output_{call}" for call in range(1, count)] for count in counts}),
                answer_tokens=mixture({count: [f"input_{call}" for call in range(2, count + 1)] for count in counts}),
                seconds=seconds,
            ),
        )


def _gaussians(components: Sequence[Component], cap: int) -> Distribution:
    return Distribution.from_cdf(lambda tokens: _mixture_cdf(components, tokens), 1, cap)


def _lognormals(components: Sequence[Component], cap: int) -> Distribution:
    return Distribution.from_cdf(lambda tokens: _mixture_cdf(components, math.log(tokens)), 1, cap)


def _mixture_cdf(components: Sequence[Component], value: float) -> float:
    total = sum(weight for weight, _, _ in components)
    return sum(weight * _NORMAL.cdf((value - mean) / deviation) for weight, mean, deviation in components) / total
