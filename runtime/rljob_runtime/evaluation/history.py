"""Evaluation history: all results of a job, without those of abandoned weights, and the best of them.

The evaluations of one round end before those of a later round begin. So a result of an earlier round than the last one
means that the job has returned to an earlier checkpoint, and that the weights of later rounds are abandoned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_runtime.evaluation.result import EvaluationResult

History = tuple[EvaluationResult, ...]
"""Results in the order in which they ended. Each name and round is there once."""


def stays(earlier: EvaluationResult, result: EvaluationResult) -> bool:
    """Return whether an earlier result remains in the history when `result` is added."""
    return earlier.round <= result.round and earlier.key != result.key


def with_result(history: History, result: EvaluationResult) -> History:
    """Return the history with one more result, as its last."""
    return (*(earlier for earlier in history if stays(earlier, result)), result)


def of_name(history: Iterable[EvaluationResult], name: str) -> list[EvaluationResult]:
    """Return the results of one evaluation by round."""
    return sorted((one for one in history if one.name == name), key=lambda one: one.round)


def value_of(result: EvaluationResult, metric: EvaluationMetric) -> float | None:
    """Return the metric of a result; None if too many of its responses failed.

    pass@k counts for the k of the spec only: a smaller k would be another metric.
    """
    if metric is EvaluationMetric.AVERAGE:
        return result.average
    found = result.pass_at.get(result.responses_per_prompt)
    return found.value if found is not None else None


def best_of(results: Sequence[EvaluationResult], metric: EvaluationMetric) -> EvaluationResult | None:
    """Return the result with the highest metric, of equal ones the earliest; None if none has the metric."""
    valued = [(value, one) for one in results if (value := value_of(one, metric)) is not None]
    if not valued:
        return None
    highest = max(value for value, _ in valued)
    return min((one for value, one in valued if value == highest), key=lambda one: one.round)


def models_to_keep(results: Sequence[EvaluationResult], metric: EvaluationMetric, floor: int) -> tuple[int, ...]:
    """Return the rounds whose models may be the best in the end, rising.

    `results` are those of one evaluation. The job may return to any round from `floor` on, and then results of later
    rounds are abandoned. So the best up to each such round is kept.
    """
    kept: set[int] = set()
    for end in (floor, *(one.round for one in results if one.round > floor)):
        best = best_of([one for one in results if one.round <= end], metric)
        if best is not None:
            kept.add(best.round)
    return tuple(sorted(kept))


def model_to_give_up(
    saved: Collection[int], results: Sequence[EvaluationResult], metric: EvaluationMetric
) -> int | None:
    """Return the round whose model is given up first where the volume has no room; None if none is.

    `saved` are the rounds that have a model, `results` those of one evaluation that have one. The best stays. First go
    models that cannot win, then worse ones before better ones, of equal ones the latest, then those without a result.
    """
    best = best_of(results, metric)
    values = {one.round: value_of(one, metric) for one in results}
    last = max(values, default=-1)

    def order(step: int) -> tuple[int, float, int]:
        value = values.get(step)
        if value is not None:
            return 1, value, -step
        return (2, 0.0, step) if step > last else (0, 0.0, step)

    return min((step for step in saved if best is None or step != best.round), key=order, default=None)
