"""Idle metrics: what the replicas waited for in a round, the fields of its report that show where time is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.timeline import ROUNDS, Timeline
from rljob_runtime.scheduling.status_cadence import rounded
from rljob_runtime.timeline.idle import idle_shares
from rljob_runtime.timeline.record import Interval


@dataclass(frozen=True)
class RoundActivity:
    """What was recorded between two times of a round.

    `intervals`: None if some were lost. `phases_row`: see `idle_shares`.
    """

    intervals: Sequence[Interval] | None
    span: tuple[float, float]
    replicas: Sequence[str]
    phases_row: str | None


def round_activity(
    timeline: Timeline, span: tuple[float, float], replicas: Sequence[str], synchronous: bool
) -> RoundActivity:
    """Return what the timeline has recorded. `synchronous`: whether replicas wait for the phases of a round."""
    return RoundActivity(timeline.recorded(), span, replicas, ROUNDS if synchronous else None)


def with_idle_shares(report: RoundReport, activity: RoundActivity) -> RoundReport:
    """Add the idle shares of a round to its report.

    Its time grows with the intervals, so the event loop must not call it.
    """
    if activity.intervals is None:
        return report
    shares = idle_shares(activity.intervals, *activity.span, activity.replicas, activity.phases_row)
    if shares is None:
        return report
    return report.model_copy(
        update={
            "idle_tail": rounded(shares.tail),
            "idle_rewards": rounded(shares.rewards),
            "idle_environments": rounded(shares.environments),
            "idle_training": rounded(shares.training),
            "idle_weights": rounded(shares.weights),
        }
    )
