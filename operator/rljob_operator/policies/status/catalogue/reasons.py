"""Reasons: what each reason of a condition means, and which conditions have it with which status.

A test compares the names with those that the operator and the coordinator write, and the conditions with what `derive`
writes for them.
"""

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

Place = tuple[str, bool]
"""Type and status of a condition."""


@dataclass(frozen=True)
class Reason:
    """Meaning of a reason."""

    places: tuple[Place, ...]
    """The conditions that can have it."""
    meaning: str


def _true(*types: str) -> tuple[Place, ...]:
    return tuple((type_, True) for type_ in types)


def _false(*types: str) -> tuple[Place, ...]:
    return tuple((type_, False) for type_ in types)


_AWAITED = (*_true(RECONCILING), *_false(READY))
"""Of pods that Ready waits for."""
_OBSTACLE = (*_true(STALLED), *_false(READY))
"""Of what a person must remove."""
_QUOTA_WAIT = (*_true(RECONCILING, SUSPENDED), *_false(READY, ADMITTED))
"""Of a queue that time helps."""
_QUOTA_OBSTACLE = (*_true(STALLED, SUSPENDED), *_false(READY, ADMITTED))
"""Of a queue that time does not help."""
_PROBLEM = _true(DEGRADED)
"""Of what does not stop the job."""
_FAILURE = _true(FAILED, STALLED)
"""Of the end of a job that fails."""

_PROGRESS: Mapping[str, Reason] = {
    "RoundsProgressing": Reason(_true(READY), "All pods that the job needs are ready, and no problem stops it."),
    "CoordinatorNotReady": Reason(_AWAITED, "The coordinator's pod is not ready."),
    "TrainerNotReady": Reason(_AWAITED, "Not all pods of the trainer are ready."),
    "BelowMinMachines": Reason(
        _AWAITED, "Fewer rollout machines are ready than `rollout.minMachines`, or `rollout.machines` without that."
    ),
    "EnvironmentNotReady": Reason(
        _AWAITED,
        "An environment has no ready runner (`Ready`), or fewer ready runners than desired (`Reconciling`).",
    ),
    "Creating": Reason(
        _true(RECONCILING), "Not all pods have been ready yet since the job's start or its last resumption."
    ),
    "MachineLeaving": Reason(
        _true(RECONCILING),
        "Another client deletes a machine's pod, or its node shuts down, and the pod hands over its state first.",
    ),
    "ScalingDown": Reason(
        _true(RECONCILING), "Rollout machines that are not in the target any more hand over their responses."
    ),
    "ReplacingMachine": Reason(_true(RECONCILING), "A machine has got its next pod, which is not ready yet."),
    "ScalingUp": Reason(_true(RECONCILING), "Fewer rollout machines are ready than the target has."),
    "ChainFormed": Reason(_true(RELAY_READY), "All rollout machines of the target are in the relay chain."),
    "MemberMissing": Reason(_false(RELAY_READY), "A rollout machine of the target is not in the relay chain."),
    "WaitingForMachines": Reason(_false(RELAY_READY), "No rollout machine is in the relay chain."),
    "AsDesired": Reason(
        _false(DEGRADED), "The job runs without a problem, or it is being created, is suspended or has ended."
    ),
    "MachinesMissing": Reason(
        _PROBLEM, "Fewer rollout machines are ready than the target has, after all pods have been ready once."
    ),
    "RunnersMissing": Reason(
        _PROBLEM, "Fewer runners of an environment are ready than desired, after all pods have been ready once."
    ),
    "ReplacementPaused": Reason(
        _PROBLEM,
        "More than half of the rollout machines, on at least two nodes, seem dead, so their replacement is delayed.",
    ),
    "StatusForged": Reason(
        _PROBLEM, "Within the last hour another client has changed or removed the operator's part of the status."
    ),
    "VolumeClaim": Reason(
        _true(CHECKPOINT_DURABLE), "`checkpoint.volumeClaimName` names the claim that has the state."
    ),
    "EmptyDir": Reason(
        _false(CHECKPOINT_DURABLE),
        "There is no `checkpoint.volumeClaimName`, so the state is lost with the pods of coordinator and trainer.",
    ),
    "Suspended": Reason(_false(READY, RELAY_READY), "The job is suspended, or is being suspended."),
    "Suspending": Reason(
        (*_true(RECONCILING), *_false(SUSPENDED)), "The job is being suspended, and some of its pods still exist."
    ),
    "SuspendedByUser": Reason(_true(SUSPENDED), "`spec.suspend` is true, and all pods are deleted."),
    "NotSuspended": Reason(_false(SUSPENDED), "The job is not suspended."),
    "InProgress": Reason(_false(COMPLETE, FAILED), "The job has not ended."),
    "Ended": Reason(
        _false(RELAY_READY, COMPLETE, FAILED), "The job has ended: one of `Complete` and `Failed` is True and says how."
    ),
    "Completed": Reason(_true(READY), "The job has ended well."),
    "Failed": Reason(_false(READY), "The job has failed; the condition `Failed` has the cause."),
    "RoundsFinished": Reason(_true(COMPLETE), "All rounds are done, and the final model is written."),
}

_OBSTACLES: Mapping[str, Reason] = {
    "InvalidSpec": Reason(
        _OBSTACLE,
        "The newest spec is invalid, or changes what may not change; the job continues with the last accepted one.",
    ),
    "InternalError": Reason(
        _OBSTACLE, "The operator fails at this job by an error of its own, and tries again; running pods continue."
    ),
    "RequestRefused": Reason(
        _OBSTACLE, "The API server refuses a request of the operator for this job, and the operator tries again."
    ),
    "NameTaken": Reason(_OBSTACLE, "An object that is not this job's has a name that the job needs."),
    "Unschedulable": Reason(_OBSTACLE, "Pods have found no node for a while; the message has the scheduler's reason."),
    "DeviceClaimsNotServed": Reason(
        _QUOTA_OBSTACLE, "The job claims devices, and the cluster does not serve `resource.k8s.io/v1`."
    ),
    "ClaimTemplateNotFound": Reason(
        _QUOTA_OBSTACLE, "The namespace has no ResourceClaimTemplate of the name in `accelerator.claimTemplate`."
    ),
    "ImagePullFailed": Reason(_OBSTACLE, "The kubelet cannot pull the image of a container."),
    "ContainerConfigError": Reason(
        _OBSTACLE, "The kubelet cannot start a container, e.g. because a Secret or a ConfigMap does not exist."
    ),
    "QuotaExceeded": Reason(_OBSTACLE, "A pod would exceed a ResourceQuota of the namespace."),
    "PodForbidden": Reason(
        _OBSTACLE,
        "The API server forbids a pod or a Deployment of the job, e.g. by the namespace's Pod Security level.",
    ),
    "PodInvalid": Reason(_OBSTACLE, "The API server refuses a pod or a Deployment of the job as invalid."),
    "PriorityClassMissing": Reason(_OBSTACLE, "A pod or a PodGroup names a PriorityClass that does not exist."),
    "RunnerMissing": Reason(_OBSTACLE, "The image of an environment does not have the runner `rljob-env`."),
    "RunnersNotStarting": Reason(
        _OBSTACLE, "New runners of an environment, or the egress proxy, are not ready in time."
    ),
    "GangTooLarge": Reason(
        _OBSTACLE, "The gang is larger than all nodes of the cluster could hold if they were empty."
    ),
    "GangUnavailable": Reason(
        _OBSTACLE, "The API server has no PodGroups of the gang scheduler, or the job names no queue of KAI."
    ),
    "GangForbidden": Reason(_OBSTACLE, "The API server forbids the operator to create the job's PodGroup."),
    "SandboxUnavailable": Reason(
        _OBSTACLE, "A reward needs a sandbox that the coordinator's node does not have; the job tries again."
    ),
    "RewardsUnavailable": Reason(
        _OBSTACLE, "The processes that compute rewards cannot start, or their container is absent; the job tries again."
    ),
    "ExportFailed": Reason(
        _OBSTACLE, "The final or the best model cannot be written, e.g. to a full volume; the job tries again."
    ),
    "EngineMismatch": Reason(
        _OBSTACLE, "Engine and trainer compute different log-probabilities with the same weights; the job waits."
    ),
    "StoreHeld": Reason(
        _OBSTACLE, "Another process holds the coordinator's store or Ray's tables; the coordinator waits for its end."
    ),
}

_QUOTA: Mapping[str, Reason] = {
    "Admitted": Reason(_true(ADMITTED), "Kueue has given quota for all machines that the operator requests."),
    "PartlyAdmitted": Reason(
        _true(ADMITTED), "Kueue has given quota for the base Workload, and not for all machines above the minimum."
    ),
    "WaitingForAdmission": Reason(_QUOTA_WAIT, "The base Workload waits for quota, or is not created yet."),
    "ResourcesChanged": Reason(
        _QUOTA_WAIT, "The pods request other resources than those admitted, so the job stops and requests them."
    ),
    "Evicted": Reason(_QUOTA_WAIT, "Kueue has evicted the base Workload, so the job stops and gives its quota back."),
    "KueueNotInstalled": Reason(
        _QUOTA_OBSTACLE, "The job names a queue, and the cluster does not serve `kueue.x-k8s.io/v1beta2`."
    ),
    "KueueNotEnabled": Reason(
        _QUOTA_OBSTACLE, "The job names a queue, and the operator has no right to read or create Workloads."
    ),
    "KueueNotAnswering": Reason(
        _OBSTACLE, "A Workload cannot be created, because a webhook, usually Kueue's, does not answer."
    ),
    "TooManyEnvironments": Reason(
        _QUOTA_OBSTACLE, "The job has more environments than a Workload can have pod sets for."
    ),
    "QueueNotFound": Reason(_QUOTA_OBSTACLE, "The LocalQueue or its ClusterQueue does not exist, or is being deleted."),
    "QueueInactive": Reason(
        _QUOTA_OBSTACLE,
        "Kueue does not consider the base Workload, usually because the LocalQueue or its ClusterQueue is stopped.",
    ),
    "QuotaTooSmall": Reason(_QUOTA_OBSTACLE, "The base Workload requests more than the queue can ever have."),
    "ResourceNotInQueue": Reason(
        _QUOTA_OBSTACLE, "The pods request a resource for which the ClusterQueue has no quota."
    ),
    "NamespaceNotSelected": Reason(
        _QUOTA_OBSTACLE, "The ClusterQueue's `namespaceSelector` does not select the job's namespace."
    ),
    "DeviceClassNotMapped": Reason(
        _QUOTA_OBSTACLE, "The pods claim devices of a DeviceClass that Kueue's configuration does not map."
    ),
    "ClaimNotCounted": Reason(_QUOTA_OBSTACLE, "Kueue cannot count the devices that the pods claim."),
    "FlavorMismatch": Reason(
        _QUOTA_OBSTACLE, "The pod template's node selector, affinity or tolerations do not fit the flavors' nodes."
    ),
    "FlavorNotFound": Reason(_QUOTA_OBSTACLE, "A ResourceFlavor that Kueue has assigned to the job was deleted."),
    "PriorityClassNotFound": Reason(
        _QUOTA_OBSTACLE, "The job names a WorkloadPriorityClass or a PriorityClass that does not exist."
    ),
    "WorkloadDeactivated": Reason(_QUOTA_OBSTACLE, "The base Workload has `spec.active: false`."),
    "WorkloadInvalid": Reason(_QUOTA_OBSTACLE, "The API server or Kueue refuses a Workload of the job as invalid."),
    "TopologyNotSupported": Reason(
        _QUOTA_OBSTACLE, "Kueue has assigned single nodes to the job, which the operator does not support."
    ),
}

_WARNINGS: Mapping[str, Reason] = {
    "BestModelNotKept": Reason(
        _PROBLEM, "The model of an evaluated round cannot be written, read or deleted, or gave way to a checkpoint."
    ),
    "CheckpointFailed": Reason(_PROBLEM, "A checkpoint could not be written; the one before it is kept."),
    "EvaluationAbandoned": Reason(
        _PROBLEM, "An evaluation has no result, because its weights were lost or the job was interrupted."
    ),
    "EvaluationOverlap": Reason(
        _PROBLEM, "Training has prompts of an evaluation, so the evaluation's result is better than the model."
    ),
    "LayoutRefused": Reason(_PROBLEM, "A rollout machine refuses a tensor parallel size, or cannot start its engines."),
    "MachinesNotJoined": Reason(_PROBLEM, "A rollout machine has failed to join the job several times in a row."),
    "ManyForks": Reason(
        _PROBLEM, "More than 5 % of the turns since the round before opened a branch of their episode."
    ),
    "NoRunner": Reason(_PROBLEM, "No runner requests the episodes of an environment."),
    "ObserverFails": Reason(_PROBLEM, "An observer of `spec.observers` does not take what it receives."),
    "PolicyFailed": Reason(
        _PROBLEM, "A policy that only saves time failed by an unforeseen error; the job continues without it."
    ),
    "RoundsNotLogged": Reason(
        _PROBLEM, "Rounds or evaluations could not be written to `rounds.jsonl` or for TensorBoard."
    ),
    "SamplesNotWritten": Reason(_PROBLEM, "Samples of rounds or evaluations could not be written to the job's volume."),
    "StoreOpening": Reason(
        _PROBLEM, "The coordinator opens its store, which takes long, e.g. for a migration to a newer format."
    ),
    "StoreSlow": Reason(_PROBLEM, "Within the last minute a call of the coordinator's store took more than 10 s."),
}
"""What the coordinator reports in `status.runtime.warnings`, without `HALTING`."""

_FAILURES: Mapping[str, Reason] = {
    "DeadlineExceeded": Reason(
        _FAILURE, "The job was not complete `runPolicy.activeDeadlineSeconds` after its start or last resumption."
    ),
    "StartupDeadlineExceeded": Reason(
        _FAILURE, "Not all pods were ready `runPolicy.startupDeadlineSeconds` after the start or last resumption."
    ),
    "BackoffLimitExceeded": Reason(
        _FAILURE, "Coordinator or trainer failed more than `runPolicy.backoffLimit` times in a row."
    ),
    "ReplacementBudgetExhausted": Reason(
        (*_OBSTACLE, *_true(FAILED)),
        "Rollout machines failed more than `failurePolicy.maxReplacementsPerMachine` times in a row: so many that the "
        "rest is below the minimum (`Stalled`), or all (`Failed`).",
    ),
    "TrainerKeepsFailing": Reason(_FAILURE, "The trainer was lost more than ten times without a new round."),
    "FunctionNotUsable": Reason(
        _FAILURE, "The user's advantage or loss cannot be loaded, raises an error, or returns what cannot be used."
    ),
    "ModelNotUsable": Reason(_FAILURE, "The trainer refuses the model or its checkpoint."),
    "LayoutNotUsable": Reason(
        _FAILURE, "A tensor parallel size does not split the model, or no rollout machine can start its engines."
    ),
    "PromptsNotUsable": Reason(
        _FAILURE, "The prompts cannot be read, or the chat template cannot write the turns of environments."
    ),
    "RewardsNotUsable": Reason(_FAILURE, "A reward cannot be loaded."),
    "NothingToLearn": Reason(
        _FAILURE, "Too many groups in a row could not be trained on, mostly because their rewards were equal."
    ),
    "EnvironmentsKeepFailing": Reason(
        _FAILURE, "Too many groups in a row could not be trained on, mostly because their environments failed."
    ),
    "RewardsKeepFailing": Reason(
        _FAILURE, "Too many groups in a row could not be trained on, mostly because their rewards failed."
    ),
    "RuntimeFailed": Reason(_FAILURE, "The coordinator reports that the run has failed, without a reason."),
}

REASONS: Mapping[str, Reason] = {**_PROGRESS, **_OBSTACLES, **_QUOTA, **_WARNINGS, **_FAILURES}


def reasons_of(type_: str, holds: bool) -> tuple[str, ...]:
    """Return the reasons that a condition can have with this status, in alphabetical order."""
    return tuple(sorted(name for name, reason in REASONS.items() if (type_, holds) in reason.places))
