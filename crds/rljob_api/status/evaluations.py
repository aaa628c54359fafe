"""Evaluation results: the points of each evaluation that the status keeps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, StatusModel


class EvaluationPoint(StatusModel):
    """The result of one evaluation of one set of weights."""

    round: Count
    """Rounds (OnPolicy) or updates (Asynchronous) that the weights have; 0 before the first."""
    average: float | None = None
    """avg@k: the mean reward of a response, k being responsesPerPrompt. Absent if no response could be scored."""
    average_error: Annotated[float | None, Field(ge=0)] = None
    """Standard error of average, over prompts. Absent with fewer than two prompts."""
    pass_at_k: Annotated[float | None, Field(ge=0, le=1)] = None
    """pass@k: the chance that at least one of k responses reaches passReward. Absent if no prompt has k scored ones."""
    pass_at_k_error: Annotated[float | None, Field(ge=0)] = None
    """Standard error of passAtK, over prompts."""
    failed: Count | None = None
    """Responses without a score. They are missing, and not wrong."""
    seconds: Annotated[float | None, Field(ge=0)] = None
    """From the first request to the last score."""
    waiting_seconds: Annotated[float | None, Field(ge=0)] = None
    """Of these, seconds for which training waited: the cost."""


class EvaluationReport(StatusModel):
    """The results of one evaluation so far. Each round has its line in `evaluations.jsonl`."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the evaluation in the spec."""
    prompts: Count | None = None
    """Number of its prompts."""
    responses_per_prompt: Count | None = None
    """Responses to each: k of avg@k and pass@k."""
    first: EvaluationPoint | None = None
    """Of the earliest weights."""
    last: EvaluationPoint | None = None
    """Of the latest weights."""
    best: EvaluationPoint | None = None
    """With the highest average, or the metric of checkpoint.keepBest; of equal ones the earliest."""
