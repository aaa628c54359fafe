"""Evaluation: what a model's answers to held-out prompts say about it, with its error, and where it is kept."""

from rljob_runtime.evaluation.estimates import PASS_REWARD, Estimate, average_at_k, default_ks, pass_at_k
from rljob_runtime.evaluation.log import EvaluationLog, read_evaluations
from rljob_runtime.evaluation.result import EvaluationResult, EvaluationTimes, SampleScore, summarize
from rljob_runtime.evaluation.scalars import evaluation_metrics

__all__ = [
    "PASS_REWARD",
    "Estimate",
    "EvaluationLog",
    "EvaluationResult",
    "EvaluationTimes",
    "SampleScore",
    "average_at_k",
    "default_ks",
    "evaluation_metrics",
    "pass_at_k",
    "read_evaluations",
    "summarize",
]
