"""Training session: the state of a started trainer rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rljob_runtime.protocols import (
    Chain,
    PublishReport,
)
from rljob_runtime.training.algorithm.own import OwnAdvantage
from rljob_runtime.training.checkpoint import state
from rljob_runtime.training.checkpoint.model_fingerprint import ModelFingerprint
from rljob_runtime.training.model.optimizer import MasterOptimizer
from rljob_runtime.training.model.sharding import RankGroup, join_gather
from rljob_runtime.training.step.learner import Learner


class Publisher(Protocol):
    """Sends weights out of the trainer.

    Implemented by `rljob_runtime.relay.publisher.Publisher`.
    """

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> PublishReport:
        """Copy the weights into the host buffer.

        Gathers sharded tensors in the order of `tensors`: a collective.
        """
        ...

    def ship(self, term: int, chain: Chain) -> None:
        """Send the newest version to the chain's master."""
        ...

    def close(self) -> None:
        """Stop sending."""
        ...


@dataclass
class TrainingSession:
    """The state of a started rank."""

    ranks: RankGroup
    learner: Learner
    fingerprint: ModelFingerprint
    model_files: dict[str, bytes]
    position: state.TrainerPosition
    restored_from: str | None
    kept: tuple[int, str | None]
    """Step of the newest checkpoint, and the coordinator's snapshot in it."""
    publisher: Publisher | None
    """Present on rank 0 only."""
    own_advantage: OwnAdvantage | None = None
    published: tuple[int, int] | None = None
    """(version, step) in the publisher's buffer. All ranks know it, because they must agree on who gathers."""

    @property
    def optimizer(self) -> MasterOptimizer:
        """Return the learner's optimiser."""
        return self.learner.optimizer

    def publish_weights(self, version: int, *, again: bool) -> PublishReport:
        """Give the current weights to the publisher (rank 0)."""
        assert self.publisher is not None, "rank 0 publishes"
        try:
            return self.publisher.publish(version, {} if again else self.optimizer.compute)
        except Exception:
            if not again:  # it raises before it gathers, but the other ranks gather
                self.join_gather_of_weights()
            raise

    def join_gather_of_weights(self, *, again: bool = False) -> None:
        """Join rank 0's gather of the current weights, unless rank 0 has them already."""
        if not again:
            join_gather(self.optimizer.compute)
