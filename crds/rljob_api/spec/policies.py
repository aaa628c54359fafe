"""Policies of a job: failures, limits of the run, and scheduling."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import DnsName, Model, QualifiedName
from rljob_api.spec.accelerators import DEFAULT_RESOURCE


class ReplacementBackOff(Model):
    """Pause before a machine that fails repeatedly is replaced. It doubles with each failure."""

    initial_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Pause after the second failure in a row; after the first there is none."""
    max_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest pause."""
    reset_after_seconds: float = Field(default=600.0, gt=0, le=604_800)
    """Seconds without a failure after which a machine starts again without a pause."""


class ForceDelete(StrEnum):
    """The rule for deleting pods on a lost node by force."""

    NEVER = "Never"
    WHEN_FENCED = "WhenFenced"
    ALWAYS = "Always"


class NodeFailure(Model):
    """Handling of lost nodes.

    Machines of a lost node are replaced when two witnesses report them (the node's silent kubelet may be one), when
    graceSeconds are over, or when Kubernetes deletes their pods, whichever comes first. An operator that serves single
    namespaces sees no nodes: there the first and the last apply, and nothing is deleted by force.
    """

    grace_seconds: float = Field(default=15.0, ge=0, le=3600)
    """Seconds for which a node may be NotReady before its machines are replaced without other witnesses."""
    force_delete: ForceDelete = Field(default=ForceDelete.WHEN_FENCED)
    """Whether pods whose end no kubelet will report are deleted by force. Never. WhenFenced: when the Node is deleted
    or tainted node.kubernetes.io/out-of-service. Always: graceSeconds after their grace period, though they may still
    run there. They block no replacement."""
    avoid_failed_nodes_seconds: float = Field(default=3600.0, ge=0, le=604_800)
    """Seconds for which no pod of the job is placed on a failed node. Shorter when a pod finds no other node."""


class FailurePolicy(Model):
    """Handling of failures."""

    max_replacements_per_machine: int = Field(default=5, ge=0, le=1000)
    """Failures in a row after which a rollout machine stays empty, and the job continues without it."""
    restart_window_seconds: float = Field(default=600.0, ge=0, le=604_800)
    """A failed process of a rollout machine is first restarted in place. After a second failure within this window, the
    machine gets a new pod on another node. 0: it is always restarted in place."""
    max_rounds_without_group: int = Field(default=3, ge=1, le=1000)
    """Rounds in a row without a single group to train on (rewards keep failing), after which the job fails."""
    backoff: ReplacementBackOff = ReplacementBackOff()
    """Pauses between replacements."""
    node_failure: NodeFailure = NodeFailure()
    """Handling of lost nodes."""


class CleanPodPolicy(StrEnum):
    """The pods that are deleted when the job has ended."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RunPolicy(Model):
    """Limits of the run, named as in Job and JobSet."""

    backoff_limit: int = Field(default=5, ge=0, le=1000)
    """Failures in a row of the coordinator or the trainer group that are repaired; one more fails the job."""
    startup_deadline_seconds: Annotated[int | None, Field(ge=1, le=604_800)] = None
    """The job fails if its pods are not all ready within this time after start or resumption."""
    active_deadline_seconds: Annotated[int | None, Field(ge=1, le=315_360_000)] = None
    """The job fails if it has not completed within this time after start or resumption."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=315_360_000)] = None
    """The job is deleted this time after its end. Absent: it stays."""
    clean_pod_policy: CleanPodPolicy = Field(default=CleanPodPolicy.RUNNING)
    """At the end delete All pods, those still Running, or None."""
    drain_seconds: int = Field(default=60, ge=0, le=86_400)
    """Longest time in which a leaving machine, or a suspending job, may hand over its state."""


class Gang(StrEnum):
    """Gang scheduling of the pods without which the job cannot start, and whose PodGroup defines the gang."""

    NONE = "None"
    NATIVE = "Native"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KAI = "KAI"


class Scheduling(Model):
    """The placement of pods on nodes; the templates have more of it."""

    scheduler_name: DnsName | None = None
    """Scheduler of all pods. A template's schedulerName overrides it. Absent: the cluster's default."""
    gang: Gang = Field(default=Gang.NONE)
    """Whether coordinator, trainer and minMachines rollout machines are placed together or not at all. None; Native: by
    Kubernetes itself (1.37, feature gate GenericWorkload); Coscheduling, Volcano, KAI: by that scheduler, which
    schedulerName may name."""
    priority_class_name: DnsName | None = None
    """Priority class of all pods. A template's priorityClassName overrides it."""
    accelerator_resource: QualifiedName = DEFAULT_RESOURCE
    """Deprecated: use spec.accelerator, which overrides it."""
