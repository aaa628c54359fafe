"""Evaluation view: evaluations as lines of text, for a run, its ending and the status."""

from __future__ import annotations

from rljob_api.status import EvaluationPoint, EvaluationReport


def evaluation_line(report: EvaluationReport, point: EvaluationPoint) -> str:
    """Return a result as one line.

    >>> point = EvaluationPoint(round=10, average=0.4236, average_error=0.0312, pass_at_k=0.61)
    >>> evaluation_line(EvaluationReport(name="gsm8k", responses_per_prompt=4), point)
    'evaluation gsm8k after round 10: 0.424 ± 0.031 avg@4, 0.61 pass@4'
    """
    return f"evaluation {report.name} {_when(point)}: {_values(report, point)}{_failed(point)}"


def evaluation_summary(report: EvaluationReport) -> str:
    """Return the first, the last and the best result of an evaluation.

    >>> first, last = EvaluationPoint(round=0, average=0.25), EvaluationPoint(round=8, average=0.5)
    >>> evaluation_summary(EvaluationReport(name="x", responses_per_prompt=1, first=first, last=last, best=last))
    '0.25 avg@1 before round 1, 0.5 avg@1 after round 8 (the best)'
    """
    first, last, best = report.first, report.last, report.best
    parts = [f"{_values(report, point)} {_when(point)}" for point in (first, last) if point is not None]
    if first is not None and last is not None and first.round == last.round:
        parts = parts[:1]
    text = ", ".join(parts)
    if best is None or best == first == last:
        return text
    if last is not None and best.round == last.round:
        return f"{text} (the best)"
    return f"{text}; best: {_values(report, best)} {_when(best)}"


def _when(point: EvaluationPoint) -> str:
    return f"after round {point.round}" if point.round else "before round 1"


def _values(report: EvaluationReport, point: EvaluationPoint) -> str:
    k = report.responses_per_prompt or 1
    parts = [f"{_number(point.average, point.average_error)} avg@{k}"]
    if point.pass_at_k is not None:
        parts.append(f"{point.pass_at_k:.3g} pass@{k}")
    return ", ".join(parts)


def _number(value: float | None, error: float | None) -> str:
    if value is None:
        return "no"
    return f"{value:.3g}" if error is None else f"{value:.3g} ± {error:.2g}"


def _failed(point: EvaluationPoint) -> str:
    return f"; {point.failed} responses have no score" if point.failed else ""
