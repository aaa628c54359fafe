"""Training loop: the protocol of both modes, and the context that they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from rljob_api.status import RoundKind, RoundReport, StatusWarning
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.async_utils import Apart, in_daemon_thread
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.episodes import Episodes, SingleTurns
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.observer_feed import OBSERVER_FAILS
from rljob_runtime.coordinator.reporting.policy_failures import PolicyFailures
from rljob_runtime.coordinator.reporting.round_log import ROUNDS_NOT_LOGGED
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.samples.writer import SAMPLES_NOT_WRITTEN
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.coordinator.trainer.weight_publisher import WeightPublisher
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols import PromptSource, Rewards, TrainReport
from rljob_runtime.scheduling.layouts.layout_switch import NeverSwitch, SwitchPolicy

log = logging.getLogger(__name__)


RoundObserver = Callable[[RoundReport, TrainReport], StatusWarning | None]
"""Called for every closed round or update: round log, TensorBoard, metrics. It must not block. It returns a warning
about earlier rounds, or None."""


EvaluationObserver = Callable[[EvaluationResult], None]
"""Called for every evaluation that has ended. It must not block. After a restart it may be called with the last ones
again."""

EndObserver = Callable[[], Awaitable[StatusWarning | None]]
"""Called when the job has ended, before that is reported. It completes what it has received, in a bounded time, and
returns a warning about what it could not."""

OBSERVER_REASONS = (ROUNDS_NOT_LOGGED, SAMPLES_NOT_WRITTEN, OBSERVER_FAILS)
"""Reasons of these warnings. Each disappears with the next round that no observer warns about."""


@dataclass(frozen=True)
class CoordinatorContext:
    """The parts of one coordinator that its training loop uses."""

    store: StoreAccess
    settings: Settings
    term: int
    reporter: Reporter
    fleet: Fleet
    trainer: TrainerClient
    publisher: WeightPublisher
    follower: TargetFollower
    rewards: Rewards
    observers: Sequence[RoundObserver]
    evaluation_observers: Sequence[EvaluationObserver] = ()
    switch_policy: SwitchPolicy = field(default_factory=NeverSwitch)
    """Decides in on-policy rounds whether machines change their tensor parallel size."""
    apart: Apart = in_daemon_thread
    """Computes decisions, whose duration depends on the number of responses."""
    end_observers: Sequence[EndObserver] = ()
    episodes: Episodes = field(default_factory=SingleTurns)

    @cached_property
    def policy_failures(self) -> PolicyFailures:
        """The failures of optional policies."""
        return PolicyFailures(self.reporter.problem)

    def notify_closed(self, report: RoundReport, trained: TrainReport) -> None:
        """Call the observers for a closed round or update. Their errors are only logged."""
        self.reporter.timeline.close(report.round)
        found: list[StatusWarning | None] = []
        for observe in self.observers:
            try:
                found.append(observe(report, trained))
            except Exception:  # an observer must not end the job
                log.exception("an observer failed over round %d", report.round)
        self._show(found)

    async def notify_ended(self) -> None:
        """Let the observers complete what they have received. Their errors are only logged."""
        if not self.end_observers:
            return
        results = await asyncio.gather(*(end() for end in self.end_observers), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                log.error("an observer failed at the end of the job", exc_info=result)
        found = [result for result in results if isinstance(result, StatusWarning)]
        for warning in found:
            log.warning("%s", warning.message)
        self._show(found)

    def _show(self, found: Iterable[StatusWarning | None]) -> None:
        problems: dict[str, StatusWarning | None] = dict.fromkeys(OBSERVER_REASONS)
        problems |= {problem.reason: problem for problem in found if problem is not None}
        for reason, problem in problems.items():
            self.reporter.problem(reason, problem)

    def notify_evaluated(self, result: EvaluationResult) -> None:
        """Call the observers of an evaluation that has ended. Their errors are only logged."""
        log.info("evaluation %s after round %d: average %s", result.name, result.round, result.average)
        for observe in self.evaluation_observers:
            try:
                observe(result)
            except Exception:  # an observer must not end the job
                log.exception("an observer failed over evaluation %s of round %d", result.name, result.round)

    def warn(self, reason: str, message: str) -> None:
        """Log a warning and show it in the status."""
        log.warning("%s", message)
        self.reporter.problem(reason, StatusWarning(reason=reason, message=message[:2048]))


class TrainingLoop(Protocol):
    """Advances the job; `on_policy.loop.OnPolicyLoop` and `asynchronous.loop.AsyncLoop` implement it."""

    @property
    def first_kind(self) -> RoundKind:
        """The kind of the next round, as far as it is known: engines start in its layout."""
        ...

    async def run(self) -> None:
        """Run background work until cancelled."""
        ...

    def notify(self) -> None:
        """React to a change of the fleet, the trainer's pods or the target."""
        ...

    async def begin(self, boundary: Boundary, prompts: PromptSource) -> None:
        """Begin at this boundary, which trainer and store have reached after a start or a loss."""
        ...

    async def advance(self, boundary: Boundary) -> Boundary:
        """Advance to the next boundary; return it.

        Raises `JobEnded` if there can be none, `TrainerLost`, and `Interrupted` if a command has to be applied.
        """
        ...

    async def has_uncommitted_update(self) -> bool:
        """Return whether the update to the next boundary may be done, so that it has to be completed."""
        ...

    async def evaluate(self, boundary: Boundary) -> None:
        """Complete the evaluations that are due at this boundary, the last one.

        Raises `Interrupted` if a command has to be applied.
        """
        ...

    async def drain(self) -> None:
        """Stop generation and store all received tokens: before a suspension, and at the end."""
        ...

    async def finish(self) -> None:
        """Drain, and drop open groups, because no further boundary is requested."""
        ...
