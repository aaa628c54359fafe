"""Metric of an evaluation: what makes one set of weights better than another."""

from __future__ import annotations

from enum import StrEnum


class EvaluationMetric(StrEnum):
    """The result of an evaluation by which the best weights are found."""

    AVERAGE = "Average"
    """avg@k: the mean reward of a response."""
    PASS_AT_K = "PassAtK"
    """pass@k: the chance that one of k responses passes."""
