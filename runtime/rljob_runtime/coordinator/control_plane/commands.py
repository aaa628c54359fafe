"""What the coordinator is asked to do, obeyed at boundaries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.errors import Interrupted
from rljob_runtime.coordinator.trainer.checkpoints import Checkpoints
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient


class BoundaryCommands:
    """Of the operator, and of whoever asks a pod to go. `step`: where the trainer stands, None while that is not
    known."""

    def __init__(self, following: TargetFollower, checkpoints: Checkpoints, trainer: TrainerClient) -> None:
        self._following = following
        self._checkpoints = checkpoints
        self._trainer = trainer
        self.step: int | None = None
        self.stopping = False
        self.hand_over: Callable[[], Awaitable[None]] = _nothing
        """Called before the machines go."""

    @property
    def interrupted(self) -> bool:
        """Whether to stop before the next boundary."""
        following = self._following
        return self.stopping or following.suspended or following.trainer_changed or self._trainer.leaving

    def stop(self) -> None:
        """Stop soon (SIGTERM)."""
        self.stopping = True
        self._following.stop()

    async def obey(self, kind: RoundKind | None, keep: Collection[str] = ()) -> None:
        """At a boundary: stop here if asked to, let go of the machines that are to leave, and have the others laid out
        for a round of this kind (None: there is none). Machines to `keep` leave later. Raises `Interrupted`."""
        if self.stopping:
            raise Interrupted
        await self.obey_suspend()
        await self.obey_leave()
        await self._following.apply_target(kind, keep)

    def forget_step(self) -> None:
        """The trainer is asked anew where it stands."""
        self._trainer.may_hold_updates |= self._trainer.available and self.step is not None
        self.step = None

    @property
    def unsure(self) -> bool:
        """Whether the trainer may hold updates that no checkpoint has, and cannot be asked for one yet: its step is not
        known, or is that of an update which the store has not closed."""
        return self.step is None and self._trainer.may_hold_updates

    async def obey_suspend(self) -> None:
        """Checkpoint what the trainer holds, hand everything over and wait. Raises `Interrupted` when it is over. While
        it is not known what the trainer holds, that comes first."""
        if not self._following.suspended or self.unsure:
            return
        await self.hand_over()
        await self.save()
        await self._following.stay_suspended()
        raise Interrupted

    async def obey_leave(self) -> None:
        """Where the trainer's pod was asked to go: checkpoint what the trainer holds, and let the pod go. Raises
        `Interrupted` then. A trainer whose step is not known yet is asked for it first."""
        if self.step is None or not self._trainer.leaving:
            return
        await self.save()
        await self._trainer.allow_to_leave()
        raise Interrupted

    async def save(self) -> None:
        """Checkpoint the last finished update, unless that is done."""
        if self.step is not None:
            await self._checkpoints.save_if_missing(self.step)


async def _nothing() -> None:
    pass
