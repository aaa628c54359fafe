"""Metric of an evaluation: what makes one set of weights better than another."""

from __future__ import annotations

from enum import StrEnum


class EvaluationMetric(StrEnum):
    """What the best weights have most of."""

    AVERAGE = "Average"
    """avg@k: the mean reward of a response."""
    PASS_AT_K = "PassAtK"
    """pass@k: the chance that one of k responses passes."""
