"""Figures of a round: what the report, the log and the metrics say of it."""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.status import RoundReport, RuntimeTotals
from rljob_runtime.coordinator.generation import Tally
from rljob_runtime.scheduling.rounds import RoundPlan, Settlement
from rljob_runtime.scheduling.trajectory import Group


class RoundClock:
    """Times the parts of a round, by the clock it is given."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: list[float] = []

    def start(self) -> None:
        self._marks = [self._clock()]

    def _mark(self) -> None:
        self._marks.append(self._clock())

    generated = trained = published = _mark

    def part(self, index: int) -> float:
        """Seconds of the generation (0), the update (1), the broadcast (2)."""
        return round(self._marks[index + 1] - self._marks[index], 3)

    @property
    def total(self) -> float:
        """Seconds from launch to new weights in every replica."""
        return round(self._marks[-1] - self._marks[0], 3)

    def rate(self, tokens: int) -> float | None:
        """Tokens per second of the generation."""
        seconds = self.part(0)
        return round(tokens / seconds, 1) if seconds > 0 else None


def round_report(
    plan: RoundPlan, groups: tuple[Group, ...], settlement: Settlement, tally: Tally, clock: RoundClock
) -> RoundReport:
    """The round's figures."""
    kept = [scored for group in groups for scored in group.responses]
    lengths = [len(scored.response.token_ids) for scored in kept]
    return RoundReport(
        round=plan.step,
        kind=plan.kind,
        seconds=clock.total,
        generation_seconds=clock.part(0),
        training_seconds=clock.part(1),
        broadcast_seconds=clock.part(2),
        responses=len(kept),
        tokens=tally.tokens,
        mean_response_tokens=round(sum(lengths) / len(lengths), 2),
        max_response_tokens=max(lengths),
        preemptions=tally.preemptions,
        reward=sum(scored.reward for scored in kept) / len(kept),
        aborted_samples=tally.aborted_samples,
        filtered_groups=len(settlement.reasons),
    )


def totals_after(totals: RuntimeTotals, plan: RoundPlan, settlement: Settlement, report: RoundReport) -> RuntimeTotals:
    """The life's counts with this round's added."""
    trained, filtered = len(settlement.groups), len(settlement.reasons)
    return totals.model_copy(
        update={
            "trained_trajectories": totals.trained_trajectories + trained * plan.responses,
            "discarded_trajectories": totals.discarded_trajectories + filtered * plan.responses,
            "aborted_samples": totals.aborted_samples + (report.aborted_samples or 0),
            "filtered_groups": totals.filtered_groups + filtered,
            "tokens": totals.tokens + (report.tokens or 0),
        }
    )
