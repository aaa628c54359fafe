"""Errors: why a stage, the trainer or the whole run ends."""

from __future__ import annotations

from rljob_api.constants import EXPORT_FAILED
from rljob_api.status import Finished


class Interrupted(Exception):
    """The stage was stopped before the round was complete; what came is in the store."""


class TrainerLost(Exception):
    """The trainer group failed or its pods changed: start it anew and see at which step it stands."""


class ModelNotUsable(Exception):
    """The trainer refuses the model or its checkpoint; trying again brings nothing."""


class LayoutNotUsable(Exception):
    """A tensor parallel size that the job allows does not split the model, or no machine can start an engine of the
    usual one."""


class ExportRefused(Exception):
    """The final model cannot be written now, e.g. because the volume is full. It is in the checkpoint, so the job
    waits."""

    reason = EXPORT_FAILED


class JobEnded(Exception):
    """The run is over, one way or the other."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.message)
        self.finished = finished
