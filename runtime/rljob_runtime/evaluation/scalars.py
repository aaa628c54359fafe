"""Scalars of an evaluation: its numbers by name, for observers and TensorBoard."""

from __future__ import annotations

from dataclasses import asdict

from rljob_runtime.evaluation.result import EvaluationResult


def evaluation_metrics(result: EvaluationResult) -> dict[str, float]:
    """Return the numbers of an evaluation: `evaluation/NAME/…`, with `pass_at_4` for k = 4 and `rule/RULE` by rule.

    Names have the characters that OpenTelemetry and MLflow accept.
    """
    values: dict[str, float | None] = {
        "average": result.average,
        "average_error": result.average_error,
        **{f"pass_at_{k}": one.value for k, one in result.pass_at.items()},
        **{f"pass_at_{k}_error": one.error for k, one in result.pass_at.items()},
        **{f"rule/{name}": value for name, value in result.rules.items()},
        "failed": result.failed,
        "mean_tokens": result.mean_tokens,
        "cut_share": result.cut_share,
        **asdict(result.times),
    }
    return {f"evaluation/{result.name}/{name}": float(value) for name, value in values.items() if value is not None}
