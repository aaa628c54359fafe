"""Evaluations in the status: first, last and best result of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.spec.resources import KeepBest
from rljob_api.status import EvaluationPoint, EvaluationReport
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.evaluation.history import History, best_of, of_name, value_of, with_result
from rljob_runtime.evaluation.result import EvaluationResult


class EvaluationBoard:
    """The results of a job's evaluations, as the status shows them.

    `keep_best`: by which metric the results of its evaluation are compared. Those of others: by the average.
    """

    def __init__(self, reporter: Reporter, keep_best: KeepBest | None = None) -> None:
        self._reporter = reporter
        self._metrics = {keep_best.evaluation: keep_best.metric} if keep_best is not None else {}
        self._history: History = ()

    def restore(self, results: Iterable[EvaluationResult]) -> None:
        """Show the results in the store, in the order of their rounds: after a start and after a rewind."""
        self._history = tuple(results)
        self._show()

    def add(self, result: EvaluationResult) -> None:
        """Show a new result."""
        self._history = with_result(self._history, result)
        self._show()

    def _show(self) -> None:
        reports = evaluation_reports(self._history, self._metrics)
        if reports != self._reporter.draft.evaluations:
            self._reporter.event(evaluations=reports)


def evaluation_reports(
    history: Iterable[EvaluationResult], metrics: Mapping[str, EvaluationMetric]
) -> tuple[EvaluationReport, ...]:
    """Return the status of each evaluation, in the order of their first results."""
    history = tuple(history)
    return tuple(_report(of_name(history, name), metrics) for name in dict.fromkeys(one.name for one in history))


def _report(results: list[EvaluationResult], metrics: Mapping[str, EvaluationMetric]) -> EvaluationReport:
    first, last = results[0], results[-1]
    best = best_of(results, metrics.get(last.name, EvaluationMetric.AVERAGE))
    return EvaluationReport(
        name=last.name,
        prompts=last.prompts,
        responses_per_prompt=last.responses_per_prompt,
        first=_point(first),
        last=_point(last),
        best=_point(best) if best is not None else None,
    )


def _rounded(value: float | None) -> float | None:
    """Return a value as people read it; the file of evaluations has all digits."""
    return None if value is None else round(value, 4)


def _point(result: EvaluationResult) -> EvaluationPoint:
    passed = result.pass_at.get(result.responses_per_prompt)
    return EvaluationPoint(
        round=result.round,
        average=_rounded(result.average),
        average_error=_rounded(result.average_error),
        pass_at_k=_rounded(value_of(result, EvaluationMetric.PASS_AT_K)),
        pass_at_k_error=_rounded(passed.error if passed is not None else None),
        failed=result.failed or None,
        seconds=result.times.seconds,
        waiting_seconds=result.times.waiting_seconds,
    )
