"""When the trainer writes a checkpoint or the final model, and what is said of it."""

from __future__ import annotations

import logging

from rljob_api.status import CheckpointStatus, StatusWarning
from rljob_runtime.coordinator.core.errors import ExportRefused
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.recovery import standing_at
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import Refused, StaleTerm

log = logging.getLogger(__name__)

PROBLEM = "CheckpointFailed"


class Checkpoints:
    """The job's checkpoints, each with what a new history needs when the store is lost. All methods raise
    `TrainerLost`, and `StaleTerm` when another coordinator took over."""

    def __init__(
        self, trainer: TrainerClient, store: StoreAccess, term: int, settings: Settings, reporter: Reporter
    ) -> None:
        self._trainer = trainer
        self._store = store
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._newest: int | None = None

    async def after_round(self, step: int) -> None:
        """One every so many rounds."""
        if step % self._settings.checkpoint_every == 0:
            await self._write(step)

    async def ensure(self, step: int) -> None:
        """One of this step, if there is none yet: before a suspension, and at the end."""
        if self._newest != step:
            await self._write(step)

    async def export(self) -> str:
        """The final model's folder. Raises `ExportRefused`."""
        try:
            return await self._trainer.call(lambda trainer: trainer.export(self._term))
        except StaleTerm:
            raise
        except Refused as error:
            raise ExportRefused(f"the final model cannot be written: {error}") from error

    async def _write(self, step: int) -> None:
        """A checkpoint that is refused (a full disk) is a problem for a human, not the end: the former one is
        untouched."""
        standing = await self._store.do(lambda store: standing_at(store, step))
        if standing is None:
            log.warning("no checkpoint of step %d is written: the store does not stand there yet", step)
            return
        document = standing.to_json()
        self._reporter.update(stage="Checkpointing")
        try:
            name = await self._trainer.call(lambda trainer: trainer.checkpoint(self._term, step, document))
        except StaleTerm:
            raise
        except Refused as error:
            log.error("checkpoint of step %d failed: %s", step, error)
            self._reporter.problem(PROBLEM, StatusWarning(reason=PROBLEM, message=str(error)[:2048]))
        else:
            before, self._newest = self._newest, step
            self._reporter.problem(PROBLEM, None)
            self._reporter.event(checkpoint=CheckpointStatus(round=step, name=name))
            # The one before is kept too: this one may be found damaged.
            if before is not None:
                await self._forget(before)

    async def _forget(self, step: int) -> None:
        """A piece at a time: tokens that come meanwhile are written in between."""
        while await self._store.do(lambda store: store.experience.forget(step)):
            pass
