"""Training metrics: the numbers of an update that the report of its round has, and so the status."""

from __future__ import annotations

import math
from typing import TypedDict

from rljob_runtime.protocols import TrainReport
from rljob_runtime.scheduling.status_cadence import rounded


class TrainingMetrics(TypedDict):
    """Fields of `RoundReport`."""

    entropy: float | None
    reference_kl: float | None
    mismatch_kl: float | None
    clip_fraction_low: float | None
    clip_fraction_high: float | None


def training_metrics(trained: TrainReport) -> TrainingMetrics:
    """Return what the report of a round repeats of its update. None: the job does not compute it."""
    return {
        "entropy": _shown(trained.entropy),
        "reference_kl": _shown(trained.reference_kl),
        "mismatch_kl": _shown(trained.mismatch_kl),
        "clip_fraction_low": _shown(trained.metrics.get("clip_fraction_low")),
        "clip_fraction_high": _shown(trained.metrics.get("clip_fraction_high")),
    }


def _shown(value: float | None) -> float | None:
    """Round a number. A loss of the user's may report NaN, which no status can hold.

    A number near the largest one is rounded beyond it.
    """
    shown = None if value is None else rounded(value)
    return shown if shown is not None and math.isfinite(shown) else None
