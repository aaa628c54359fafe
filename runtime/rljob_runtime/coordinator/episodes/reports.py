"""Reports: what runners say of attempts, checked before it is stored. Runners are foreign."""

from __future__ import annotations

import logging
from dataclasses import replace

from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.coordinator.store.tables.turns import metrics_text
from rljob_runtime.protocols.environments import (
    LARGEST_REWARD,
    TRACE_TOKENS,
    TRACE_TURNS,
    EpisodeReport,
    FailedPart,
)
from rljob_runtime.protocols.turns import EpisodeAttempt

log = logging.getLogger(__name__)


def trace_difference(attempt: Attempt, report: EpisodeReport) -> str:
    """Return how a harness's trace differs from the stored turns; nothing if it does not, or if there is none."""
    stored = {TRACE_TURNS: len(attempt.recorded), TRACE_TOKENS: len(attempt.token_ids)}
    traced = {name: report.metrics.get(name, own) for name, own in stored.items()}
    return ", ".join(f"{name} is {traced[name]:g}, stored {own}" for name, own in stored.items() if traced[name] != own)


def storable_report(report: EpisodeReport, episode: EpisodeAttempt) -> EpisodeReport:
    """Return a report that the store takes: a runner is foreign, and what it says must not end the coordinator."""
    if report.reward is not None and not -LARGEST_REWARD <= report.reward <= LARGEST_REWARD:  # not a number either
        right = f"a number from {-LARGEST_REWARD:g} to {LARGEST_REWARD:g} would be right"
        text = f"the environment's reward was {report.reward:g}; {right}"
        return EpisodeReport(failed=FailedPart.ENVIRONMENT, detail=text)
    try:
        metrics_text(report.metrics)
    except ValueError as error:
        log.warning("the metrics of %s are left out: %s", episode, error)
        return replace(report, metrics={})
    return report
