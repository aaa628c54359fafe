"""Checkpoints: when the trainer writes a checkpoint or the final model, and how that is reported."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rljob_api.status import CheckpointStatus, StatusWarning
from rljob_runtime.coordinator.core.errors import ExportRefused
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.reporting.timeline import TRAINER
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.recovery import snapshot_at
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import Refused, StaleTerm, Trainer, VolumeFull

log = logging.getLogger(__name__)

PROBLEM = "CheckpointFailed"

MakeRoom = Callable[[str], Awaitable[bool]]
"""Deletes something for what is named by the text; returns False if there is nothing more to delete."""


class Checkpoints:
    """The checkpoints of a job. Each holds a snapshot of the coordinator, in case the store is lost.

    All methods raise `TrainerLost`, and `StaleTerm` if a later coordinator has the term.
    """

    def __init__(
        self,
        trainer: TrainerClient,
        store: StoreAccess,
        term: int,
        settings: Settings,
        reporter: Reporter,
        make_room: MakeRoom,
    ) -> None:
        self._trainer = trainer
        self._store = store
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._make_room = make_room
        self._newest: int | None = None
        self.floor = 0
        """No rewind goes below this step: the newest checkpoint may turn out damaged, and the one before it is next."""

    async def save_if_due(self, step: int) -> None:
        """Save a checkpoint if `step` is a multiple of the spec's interval."""
        if step % self._settings.checkpoint_every == 0:
            await self._write(step)

    async def save_if_missing(self, step: int) -> None:
        """Save a checkpoint of `step` unless it exists: before a suspension, and at the end."""
        if self._newest != step:
            await self._write(step)

    async def export(self) -> str:
        """Write the final model; return its folder. Raises `ExportRefused`."""
        try:
            with self._reporter.timeline.during(TRAINER, "export"):
                return await self._with_room("the final model", lambda trainer: trainer.export(self._term))
        except StaleTerm:
            raise
        except Refused as error:
            raise ExportRefused(f"the final model cannot be written: {error}") from error

    async def _write(self, step: int) -> None:
        """Write a checkpoint. A refusal (e.g. a full disk) is a problem in the status; the job continues.

        The previous checkpoint is unchanged then. Before a full disk refuses it, models that are not the best go.
        """
        snapshot = await self._store.do(lambda store: snapshot_at(store, step))
        if snapshot is None:
            log.warning("no checkpoint of step %d: the store has not reached that step", step)
            return
        document = snapshot.to_json()
        self._reporter.update(stage="Checkpointing")
        try:
            with self._reporter.timeline.during(TRAINER, "checkpoint", round=step):
                name = await self._with_room(
                    f"the checkpoint of round {step}",
                    lambda trainer: trainer.checkpoint(self._term, step, document),
                )
        except StaleTerm:
            raise
        except Refused as error:
            log.error("checkpoint of step %d failed: %s", step, error)
            self._reporter.problem(PROBLEM, StatusWarning(reason=PROBLEM, message=str(error)[:2048]))
            self._reporter.timeline.event(PROBLEM, str(error), TRAINER)
        else:
            before, self._newest = self._newest, step
            self._reporter.problem(PROBLEM, None)
            self._reporter.event(checkpoint=CheckpointStatus(round=step, name=name))
            self._reporter.timeline.event("CheckpointWritten", f"{name}, after round {step}", TRAINER)
            # What the checkpoint before it needs stays too, because this one may turn out damaged.
            if before is not None:
                self.floor = before
                await self._forget(before)

    async def _with_room(self, what: str, write: Callable[[Trainer], Coroutine[Any, Any, str]]) -> str:
        """Have the trainer write, again after each deletion while the volume is full. Raises as the trainer does."""
        while True:
            try:
                return await self._trainer.call(write)
            except VolumeFull:
                if not await self._make_room(what):
                    raise

    async def _forget(self, step: int) -> None:
        """Forget old groups in pieces, so that new tokens are written in between."""
        while await self._store.do(lambda store: store.experience.forget(step)):
            pass
