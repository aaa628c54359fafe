"""Boundary commands: suspend, stop and changes of the target, applied between two rounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.errors import Interrupted
from rljob_runtime.coordinator.trainer.checkpoints import Checkpoints
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout


class BoundaryCommands:
    """Commands of the operator, and evictions of pods. `step`: the trainer's step; None while it is unknown."""

    def __init__(self, follower: TargetFollower, checkpoints: Checkpoints, trainer: TrainerClient) -> None:
        self._follower = follower
        self._checkpoints = checkpoints
        self._trainer = trainer
        self.step: int | None = None
        self.stopping = False
        self.drain: Callable[[], Awaitable[None]] = _nothing
        """Called before the machines leave."""

    @property
    def interrupted(self) -> bool:
        """Whether to stop before the next boundary."""
        follower = self._follower
        return self.stopping or follower.suspended or follower.trainer_changed or self._trainer.leaving

    def stop(self) -> None:
        """Stop soon (SIGTERM)."""
        self.stopping = True
        self._follower.stop()

    async def apply(
        self, kind: RoundKind | None, keep: Collection[str] = (), layout: RoundLayout | None = None
    ) -> RoundLayout | None:
        """Apply all commands at a boundary.

        `kind`, `keep` and `layout`: see `TargetFollower.apply_target`. Raises `Interrupted` after a stop, suspension or
        eviction.
        """
        if self.stopping:
            raise Interrupted
        await self.apply_suspend()
        await self.apply_trainer_eviction()
        return await self._follower.apply_target(kind, keep, layout)

    def forget_step(self) -> None:
        """Mark the trainer's step as unknown."""
        self._trainer.may_hold_updates |= self._trainer.available and self.step is not None
        self.step = None

    @property
    def may_lose_updates(self) -> bool:
        """Whether the trainer may hold updates without a checkpoint, and cannot write one yet.

        Its step is unknown, or it is the step of an update that the store has not closed.
        """
        return self.step is None and self._trainer.may_hold_updates

    async def apply_suspend(self) -> None:
        """If the job is suspended: save a checkpoint, remove all machines and wait. Raises `Interrupted` afterwards.

        While the trainer may lose updates, its step is determined first.
        """
        if not self._follower.suspended or self.may_lose_updates:
            return
        await self.drain()
        await self.save()
        await self._follower.stay_suspended()
        raise Interrupted

    async def apply_trainer_eviction(self) -> None:
        """If the trainer's pod was asked to leave: save a checkpoint and let it leave. Raises `Interrupted` afterwards.

        While the trainer's step is unknown, it is determined first.
        """
        if self.step is None or not self._trainer.leaving:
            return
        await self.save()
        await self._trainer.allow_to_leave()
        raise Interrupted

    async def save(self) -> None:
        """Save a checkpoint of the last finished update, unless it exists."""
        if self.step is not None:
            await self._checkpoints.save_if_missing(self.step)


async def _nothing() -> None:
    pass
