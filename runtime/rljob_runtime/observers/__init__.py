"""Observers: other programs that receive the metrics of each round, as W&B, MLflow and OpenTelemetry.

An observer is found by its name in the entry point group `rljob.observers`. It runs in a thread of its own: one that
is slow or fails costs the job a warning and nothing else.
"""

from rljob_runtime.observers.protocol import JobEvent, ObservedJob, Observer, ObserverUnavailable

__all__ = ["JobEvent", "ObservedJob", "Observer", "ObserverUnavailable"]
