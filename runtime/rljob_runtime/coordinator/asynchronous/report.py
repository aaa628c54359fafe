"""Update report: the metrics of one update in `mode: Asynchronous`, for status, log and Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rljob_api.status import RoundKind, RoundReport
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.stopwatch import Stopwatch
from rljob_runtime.coordinator.reporting.training_metrics import training_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.scheduling.status_cadence import rounded


class UpdateTimer(Stopwatch):
    """Timer of an update, from the end of the one before: waiting for groups (part 0), training (1), publishing (2)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.standstill = 0.0
        """Mean seconds that a replica was blocked by a full buffer."""
        self.start()

    waited = trained = published = Stopwatch._mark


def update_report(
    groups: Sequence[Group],
    stale: Mapping[PromptKey, int],
    stats: GenerationStats,
    clock: UpdateTimer,
    trained: TrainReport,
    layout: tuple[int, float],
    capacity: int,
) -> RoundReport:
    """Build the report of an update.

    `stale`: updates between the weights of each group and this one. `stats`: of generation since the update before.
    `layout`: TP size, and the seconds of switching to it. `capacity`: groups that may be open from now on."""
    kept = [len(scored.response.token_ids) for group in groups for scored in group.responses]
    rewards = [scored.reward for group in groups for scored in group.responses]
    return RoundReport(
        round=trained.step,
        kind=RoundKind.PLAIN,
        seconds=clock.total,
        training_seconds=clock.part(1),
        broadcast_seconds=clock.part(2),
        trainer_wait_seconds=clock.part(0),
        buffer_full_seconds=round(clock.standstill, 3),
        responses=len(kept),
        tokens=stats.tokens,
        mean_response_tokens=round(sum(kept) / len(kept), 2),
        max_response_tokens=max(kept),
        preemptions=stats.preemptions,
        reward=rounded(sum(rewards) / len(rewards)),
        aborted_samples=stats.aborted_samples,
        filtered_groups=stats.filtered_groups,
        unscored_groups=stats.unscored_groups,
        environment_failed_groups=stats.environment_failed_groups,
        launched_prompts=stats.drawn_prompts,
        requeued_prompts=stats.requeued_prompts,
        discarded_tokens=stats.lost_tokens,
        lost_version_tokens=stats.lost_version_tokens,
        reward_delay_seconds=round(stats.reward_seconds / max(1, stats.rewards), 3),
        tensor_parallel_size=layout[0],
        layout_seconds=round(layout[1], 3),
        staleness=round(sum(stale.values()) / len(stale), 3),
        max_staleness=max(stale.values()),
        capacity_prompts=capacity,
        repacks=stats.repacks,
        moved_responses=stats.moved_responses,
        **training_metrics(trained),
    )
