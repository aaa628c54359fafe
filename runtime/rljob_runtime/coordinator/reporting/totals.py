"""Totals: the counts of a job over all rounds or updates."""

from __future__ import annotations

from rljob_api.status import RoundReport, RuntimeTotals


def totals_after(totals: RuntimeTotals, report: RoundReport, discarded: int) -> RuntimeTotals:
    """Add the counts of a round or an update. `discarded`: its trajectories that are not trained on."""
    added = {
        "trained_trajectories": report.responses,
        "discarded_trajectories": discarded,
        "aborted_samples": report.aborted_samples,
        "filtered_groups": report.filtered_groups,
        "unscored_groups": report.unscored_groups,
        "environment_failed_groups": report.environment_failed_groups,
        "requeued_prompts": report.requeued_prompts,
        "tokens": report.tokens,
        "discarded_tokens": report.discarded_tokens,
        "lost_version_tokens": report.lost_version_tokens,
    }
    return totals.model_copy(update={name: getattr(totals, name) + (count or 0) for name, count in added.items()})
