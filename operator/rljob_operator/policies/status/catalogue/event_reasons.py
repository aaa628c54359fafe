"""Event reasons: what each event means. Reasons of Stalled and of Admitted are events too, and not listed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_operator.policies.base.decisions import NORMAL, WARNING


@dataclass(frozen=True)
class EventReason:
    """Meaning of an event."""

    kinds: frozenset[str]
    """The types that Kubernetes shows for it: Normal, Warning, or either."""
    meaning: str


_NORMAL, _WARNING = frozenset({NORMAL}), frozenset({WARNING})

EVENT_REASONS: Mapping[str, EventReason] = {
    "Created": EventReason(_NORMAL, "The first pods are created."),
    "CheckpointNotDurable": EventReason(_WARNING, "The first pods are created, and `CheckpointDurable` is False."),
    "Running": EventReason(
        _NORMAL, "The job becomes Ready, and not all pods were ready before since its start or its last resumption."
    ),
    "Recovered": EventReason(_NORMAL, "The job becomes Ready again."),
    "MachineLost": EventReason(
        _NORMAL | _WARNING,
        "A pod does no more work for the job. The event is Normal if no failure is the cause, e.g. of a deleted pod.",
    ),
    "MachineReplaced": EventReason(_NORMAL, "A machine gets its next pod."),
    "MachineLeaving": EventReason(
        _NORMAL,
        "A pod of trainer or coordinator is being deleted by another client, or its node shuts down. It saves its "
        "state first.",
    ),
    "MachineMoved": EventReason(
        _NORMAL, "A rollout machine leaves the target, e.g. for a drain of its node, and another one takes its place."
    ),
    "MachinesGivenBack": EventReason(
        _WARNING, "The coordinator's pod is refused, and the pods that have waited too long for it are deleted."
    ),
    "NodeAvoided": EventReason(
        _WARNING, "A machine was lost, probably because of its node. The node gets no pods of the job for now."
    ),
    "NodeForgiven": EventReason(_NORMAL, "An avoided node gets pods again, because a pod finds no other node."),
    "PodForceDeleted": EventReason(
        _WARNING,
        "A pod that is being deleted, on a node that is gone or not ready, is removed without the kubelet's "
        "confirmation.",
    ),
    "ReplacementPaused": EventReason(_WARNING, "`Degraded` gets the reason ReplacementPaused."),
    "ReplacementResumed": EventReason(_NORMAL, "Machines that seem dead are replaced immediately again."),
    "RolloutScaledUp": EventReason(_NORMAL, "The target has more rollout machines."),
    "RolloutScaledDown": EventReason(_NORMAL, "The target has fewer rollout machines."),
    "RunnersScaledUp": EventReason(_NORMAL, "The operator raises the number of an environment's runners."),
    "RunnersScaledDown": EventReason(_NORMAL, "The operator lowers the number of an environment's runners."),
    "TensorParallelChanged": EventReason(_NORMAL, "Short or long rounds get another tensor parallel size."),
    "LayoutSwitched": EventReason(
        _NORMAL, "Machines changed their tensor parallel size inside a round (`adaptiveTensorParallel`)."
    ),
    "LayoutSwitchFailed": EventReason(
        _WARNING,
        "Machines refused a tensor parallel size, or were lost, when they switched to it inside a round "
        "(`adaptiveTensorParallel`).",
    ),
    "RelayFormed": EventReason(_NORMAL, "The relay chain forms for the first time."),
    "RelayRebuilt": EventReason(_NORMAL, "The relay chain has other members, or forms again."),
    "Admitted": EventReason(_NORMAL, "Kueue admits the base Workload."),
    "SpecAccepted": EventReason(_NORMAL, "The spec is valid again after InvalidSpec, and in force."),
    "StatusForged": EventReason(
        _WARNING, "Another client has changed the operator's part of the status, and the operator has undone it."
    ),
    "Suspending": EventReason(_NORMAL, "The job is being suspended, and the coordinator saves its state."),
    "Suspended": EventReason(_NORMAL, "All pods of the suspended job are deleted."),
    "Resumed": EventReason(_NORMAL, "The job is not suspended any more, and gets pods again."),
    "Completed": EventReason(_NORMAL, "The job has ended well."),
    "Failed": EventReason(_WARNING, "The job has failed."),
}
