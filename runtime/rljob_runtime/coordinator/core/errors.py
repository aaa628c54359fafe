"""Errors: why a stage, the trainer or the job ends."""

from __future__ import annotations

from rljob_api.constants import EXPORT_FAILED
from rljob_api.status import Finished


class Interrupted(Exception):
    """The stage was stopped before the round was complete. All received tokens are stored."""


class TrainerLost(Exception):
    """The trainer group failed or its pods changed. It has to be restarted, and its step read."""


class ModelNotUsable(Exception):
    """The trainer refuses the model or its checkpoint. Another try gives the same result."""


class FunctionNotUsable(Exception):
    """The user's advantage or loss cannot be loaded, raises, or returns what cannot be used.

    Another try gives the same result.
    """


class LayoutNotUsable(Exception):
    """A tensor parallel size of the job does not split the model, or no machine can start the default layout."""


class ExportRefused(Exception):
    """The final model cannot be written now, e.g. because the volume is full.

    The job waits, because the checkpoint contains the model.
    """

    reason = EXPORT_FAILED


class JobEnded(Exception):
    """The job has ended, with this result."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.message)
        self.finished = finished
