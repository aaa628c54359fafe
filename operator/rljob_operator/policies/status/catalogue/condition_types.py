"""Condition types: what each condition means when it is True, and when it is in the status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_operator.policies.base.kueue_objects import ADMITTED
from rljob_operator.policies.status.conditions import (
    CHECKPOINT_DURABLE,
    COMPLETE,
    DEGRADED,
    FAILED,
    READY,
    RECONCILING,
    RELAY_READY,
    STALLED,
    SUSPENDED,
)

_ALWAYS, _WHILE_TRUE = "always", "only while it is True"


@dataclass(frozen=True)
class ConditionType:
    """Meaning of a condition."""

    present: str
    """When the status has it."""
    meaning: str
    """What it means when it is True."""


CONDITION_TYPES: Mapping[str, ConditionType] = {
    READY: ConditionType(
        _ALWAYS,
        "The job is complete. Or the coordinator, all trainers and at least `minMachines` rollout machines are ready, "
        "each environment has a ready runner, no problem stops the next round, and the newest spec is in force.",
    ),
    RECONCILING: ConditionType(_WHILE_TRUE, "The job is on the way to what its spec says."),
    STALLED: ConditionType(_WHILE_TRUE, "A person must act, or the job has failed."),
    RELAY_READY: ConditionType(
        _ALWAYS,
        "Every rollout machine of the target is in the relay chain. The coordinator's chain (`status.runtime.relay`) "
        "counts as soon as the coordinator reports one.",
    ),
    DEGRADED: ConditionType(_ALWAYS, "The job runs with less than its spec says, or with a problem."),
    CHECKPOINT_DURABLE: ConditionType(_ALWAYS, "The state survives the pods."),
    SUSPENDED: ConditionType(_ALWAYS, "The job is suspended by its user or held by its queue, and has no pods left."),
    ADMITTED: ConditionType(
        "only of a job with a queue that its user has not suspended, until its end",
        "Kueue has given quota for the base Workload, and the pods can use it.",
    ),
    COMPLETE: ConditionType(_ALWAYS, "The job has ended well. It stays True, and `Failed` stays False."),
    FAILED: ConditionType(_ALWAYS, "The job has failed. It stays True, and `Complete` stays False."),
}
"""By type, in the order of importance."""
