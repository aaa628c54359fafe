"""Round report: the metrics of one round, for status, log and Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

from rljob_api.status import (
    Finished,
    FinishedOutcome,
    LayoutForecast,
    LoanReport,
    LoanState,
    MachineForecast,
    RoundReport,
)
from rljob_runtime.coordinator.generation.stopwatch import Stopwatch
from rljob_runtime.coordinator.on_policy.generation import Generation
from rljob_runtime.coordinator.on_policy.switch_report import switches_report
from rljob_runtime.coordinator.reporting.training_metrics import training_metrics
from rljob_runtime.coordinator.stream_training.stream import Streamed
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.scheduling.lending.policy import LoanDecision, LoanOutcome
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED, PromptOutcome, RoundOutcome
from rljob_runtime.scheduling.round_planner.plans import SelectedPlan
from rljob_runtime.scheduling.round_planner.survival import mean_length
from rljob_runtime.scheduling.status_cadence import rounded


class RoundTimer(Stopwatch):
    """Timer of a round, from launch to new weights in every replica: generation (part 0), update (1), broadcast (2)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.stream = Streamed()
        self.loan: LoanDecision | None = None

    generated = trained = published = Stopwatch._mark

    def rate(self, tokens: int) -> float | None:
        """Return the generated tokens per second."""
        seconds = self.part(0)
        return round(tokens / seconds, 1) if seconds > 0 else None


def round_report(
    generation: Generation,
    groups: tuple[Group, ...],
    outcome: RoundOutcome,
    deferred_prompts: int,
    clock: RoundTimer,
    trained: TrainReport,
    layout: tuple[int, float],
    selected: SelectedPlan,
    may_switch: bool = False,
) -> RoundReport:
    """Build the report of a round.

    It shows launched and kept responses side by side, because a race prefers short responses: lost responses are never
    made up for, and only metrics show the effect. `layout`: TP size at the start of the
    round, and the seconds of switching to it. `may_switch`: whether machines may switch it inside the round."""
    plan, stats, scoring = generation.round.plan, generation.stats, generation.responses.reward_figures()
    switcher = generation.switcher
    ended = {key: len(response.token_ids) for key, response in generation.responses.ended.items()}
    cut = generation.responses.cut_lengths()
    kept, reasons = [ended[key] for key in outcome.kept], list(generation.round.filtered.values())
    tokens = sum(ended.values()) + sum(cut) + stats.lost_tokens
    rewards = [scored.reward for group in groups for scored in group.responses]
    scored = [reward for key in ended if (reward := generation.round.reward(key)) is not None]
    return RoundReport(
        round=plan.step,
        kind=plan.shape.kind,
        seconds=clock.total,
        generation_seconds=clock.part(0),
        training_seconds=clock.part(1),
        broadcast_seconds=clock.part(2),
        responses=len(kept),
        tokens=tokens,
        mean_response_tokens=round(_mean(kept), 2),
        max_response_tokens=max(kept),
        preemptions=stats.preemptions,
        reward=rounded(_mean(rewards)),
        aborted_samples=stats.aborted_samples,
        filtered_groups=len(outcome.with_outcome(PromptOutcome.FILTERED)),
        unscored_groups=reasons.count(REWARD_FAILED),
        environment_failed_groups=reasons.count(ENVIRONMENT_FAILED),
        launched_prompts=len(plan.prompts),
        launched_responses=len(ended) + len(cut),
        aborted_responses=stats.aborted_responses,
        requeued_prompts=len(outcome.with_outcome(PromptOutcome.REQUEUED)),
        discarded_tokens=tokens - sum(kept),
        launched_mean_tokens=round(mean_length(ended.values(), cut), 2),
        scored_reward=rounded(_mean(scored)),
        deferred_prompts=deferred_prompts,
        reward_delay_seconds=round(stats.reward_seconds / max(1, stats.rewards), 3),
        early_groups=trained.early_groups,
        tensor_parallel_size=layout[0],
        layout_seconds=round(layout[1], 3),
        layout_switches=switches_report(switcher.switches, switcher.decision, switcher.before) if may_switch else None,
        **training_metrics(trained),
        **_plan_fields(selected),
        **_scoring_fields(scoring),
        **_stream_fields(clock),
    )


class _PlanFields(TypedDict):
    plan: str
    plan_reason: str
    predicted_seconds: float | None
    predicted_speedup: float | None
    layout_forecasts: tuple[LayoutForecast, ...] | None
    machine_forecasts: tuple[MachineForecast, ...] | None


def _plan_fields(selected: SelectedPlan) -> _PlanFields:
    layouts = [LayoutForecast(tensor_parallel_size=size, seconds=seconds) for size, seconds in selected.layouts]
    machines = [MachineForecast(machines=count, seconds=seconds) for count, seconds in selected.machines]
    return {
        "plan": str(selected.plan),
        "plan_reason": selected.reason,
        "predicted_seconds": selected.seconds,
        "predicted_speedup": selected.speedup,
        "layout_forecasts": tuple(layouts) or None,
        "machine_forecasts": tuple(machines) or None,
    }


class _ScoringFields(TypedDict):
    reward_seconds: float
    program_runs: int | None
    program_timeouts: int | None
    shadow_timeouts: int | None
    late_programs: int | None


def _scoring_fields(scoring: RewardStats) -> _ScoringFields:
    programs = scoring.programs.total()
    return {
        "reward_seconds": round(scoring.seconds, 3),
        "program_runs": programs or None,
        "program_timeouts": scoring.timeouts if programs else None,
        "shadow_timeouts": scoring.shadow_timeouts if programs else None,
        "late_programs": scoring.late if programs else None,
    }


class _StreamFields(TypedDict):
    overlap_seconds: float
    loan: LoanReport | None
    loaned_machines: int
    loaned_groups: int
    predicted_gain_seconds: float | None


def _stream_fields(clock: RoundTimer) -> _StreamFields:
    return {
        "overlap_seconds": round(clock.stream.overlap_seconds, 3),
        "loan": _loan(clock.loan),
        "loaned_machines": clock.stream.loaned_machines,
        "loaned_groups": clock.stream.loaned_groups,
        "predicted_gain_seconds": _finite(clock.loan.gain if clock.loan is not None else None),
    }


def _loan(decision: LoanDecision | None) -> LoanReport | None:
    if decision is None:
        return None
    if decision.outcome is LoanOutcome.LOANED:
        return LoanReport(state=LoanState.LOANED)
    return LoanReport(state=LoanState.NOT_LOANED, reason=decision.outcome.value)


def _finite(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None and math.isfinite(seconds) else None


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def rounds_finished(step: int, path: str) -> Finished:
    """Return the outcome of a job that completed all its rounds."""
    return Finished(
        outcome=FinishedOutcome.COMPLETE,
        reason="RoundsFinished",
        message=f"{step} rounds are done; the model is at {path}",
    )
