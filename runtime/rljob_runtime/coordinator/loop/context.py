"""What a mode of training is to the coordinator: the way from one boundary to the next, and what all ways share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api.status import RoundKind, RoundReport, StatusWarning
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.round_log import ROUNDS_NOT_LOGGED
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.coordinator.trainer.weight_publisher import WeightPublisher
from rljob_runtime.protocols import PromptSource, Rewards, TrainReport

log = logging.getLogger(__name__)


RoundObserver = Callable[[RoundReport, TrainReport], StatusWarning | None]
"""Told of every closed round or update: the log, TensorBoard, metrics. It does not wait for anything. It says what
people should know of the rounds before, if anything."""


@dataclass(frozen=True)
class CoordinatorContext:
    """The rooms of one coordinator that every course goes through."""

    store: StoreAccess
    settings: Settings
    term: int
    reporter: Reporter
    fleet: Fleet
    trainer: TrainerClient
    publication: WeightPublisher
    following: TargetFollower
    rewards: Rewards
    observers: Sequence[RoundObserver]

    def closed(self, report: RoundReport, trained: TrainReport) -> None:
        """A round is closed, or an update: observers hear of it. One that fails harms nobody."""
        problem: StatusWarning | None = None
        for observe in self.observers:
            try:
                problem = observe(report, trained) or problem
            except Exception:  # whatever it is, it is the observer's
                log.exception("an observer failed over round %d", report.round)
        self.reporter.problem(ROUNDS_NOT_LOGGED, problem)


class TrainingLoop(Protocol):
    """`loop.Rounds` and `updates.Updates`."""

    @property
    def first_kind(self) -> RoundKind:
        """Of the first round to come: engines start while it is not known yet."""
        ...

    async def run(self) -> None:
        """What goes on beside the boundaries, until cancelled."""
        ...

    def wake(self) -> None:
        """The fleet, the trainer's pods or the target changed."""
        ...

    async def begin(self, boundary: Boundary, prompts: PromptSource) -> None:
        """Trainer and store stand at this boundary, after a start or a loss."""
        ...

    async def advance(self, boundary: Boundary) -> Boundary:
        """To the next boundary. Raises `JobEnded` when there can be none, `TrainerLost`, and `Interrupted` when the
        coordinator is to do something else."""
        ...

    async def under_way(self) -> bool:
        """Whether the next boundary will come though nobody asks for it any more: its update may be done already."""
        ...

    async def hand_over(self) -> None:
        """Nothing generates any more, and what came is in the store: before a suspension, and at the end."""
        ...

    async def finish(self) -> None:
        """As `hand_over`, when no further boundary is asked for: what is open is not needed."""
        ...
