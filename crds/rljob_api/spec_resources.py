"""Where the job runs: trainer, rollout machines, coordinator, relay, checkpoints, failures, scheduling."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from rljob_api.accelerators import DEFAULT_RESOURCE, Accelerator
from rljob_api.constants import MAIN_CONTAINER
from rljob_api.fields import Bytes, DnsName, LabelKey, Model, QualifiedName
from rljob_api.parsing.pod_schema import without_nulls

_CONTAINER = {
    "type": "object",
    "description": "A container, as in a Pod.",
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "name": {
            "type": "string",
            "description": f"Its name: `{MAIN_CONTAINER}` for ours, anything else is a sidecar.",
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "maxLength": 63,
        }
    },
}
_POD_SPEC = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        **{
            field: {
                "type": "boolean",
                "enum": [False],
                "description": "Not supported: pods have addresses of their own.",
            }
            for field in ("hostNetwork", "hostPID", "hostIPC")
        },
        "restartPolicy": {
            "type": "string",
            "enum": ["Never"],
            "description": "Never: the operator replaces a pod that failed, under a new name.",
        },
        "containers": {
            "type": "array",
            "description": f"Merged by name: `{MAIN_CONTAINER}` is ours, any other is a sidecar.",
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": _CONTAINER,
        },
    },
}
PodSpec = Annotated[dict[str, Any], BeforeValidator(without_nulls), WithJsonSchema(_POD_SPEC)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]


class TemplateMetadata(Model):
    """Labels and annotations to put on the pods besides ours."""

    labels: Labels = Field(default_factory=dict)
    """Labels. Those under rljob.dev/ are the operator's."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations. Those under rljob.dev/ are the operator's."""


class PodTemplate(Model):
    """What to change or add in the pods of a role, written as a pod template. The operator fills in the rest, so an
    empty template is whole."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations."""
    spec: PodSpec = Field(default_factory=dict)
    """A partial PodSpec: containers, volumes, nodeSelector, tolerations, affinity, imagePullSecrets and so on.
    Containers are merged by name: `main` overrides image, command, args, env, resources, volumeMounts, probes and
    securityContext of ours; every other one is a sidecar. In the coordinator's pod `ray-head` is ours too, and
    `rewards`, where a reward is of kind Code, or of kind Python with a function that is not the runtime's own."""

    def container(self, name: str = MAIN_CONTAINER) -> dict[str, Any]:
        """The container of that name as the user wrote it, or an empty one. Also of a template whose form is
        not checked yet."""
        containers = self.spec.get("containers")
        found = containers if isinstance(containers, list) else []
        return next((one for one in found if isinstance(one, dict) and one.get("name") == name), {})

    def sidecars(self, ours: Collection[str] = (MAIN_CONTAINER,)) -> list[dict[str, Any]]:
        """The containers that are not ours."""
        return [container for container in self.spec.get("containers", []) if container.get("name") not in ours]


class Trainer(Model):
    """The trainer pods: one rank per accelerator, or one per pod without accelerators."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Trainer pods. They live and fail as one group."""
    accelerators_per_replica: int = Field(default=0, ge=0, le=64)
    """Accelerators of each pod. 0: train on CPUs."""
    accelerator: Accelerator | None = None
    """How trainer pods get them, where it differs from spec.accelerator."""
    template: PodTemplate = PodTemplate()
    """Changes to the trainer's pods."""

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.replicas * max(1, self.accelerators_per_replica)


class Engine(StrEnum):
    """What generates."""

    VLLM = "VLLM"
    REFERENCE = "Reference"


class EngineOptions(Model):
    """Settings of the rollout engine."""

    max_concurrent_requests: int = Field(default=256, ge=1, le=65_536)
    """Most responses that one replica generates at once."""
    kv_cache_bytes: Annotated[Bytes, Field(ge=1 << 16, le=1 << 45)] | None = None
    """KV cache on each accelerator of a replica (on CPUs: of each slot), e.g. 512Mi. Absent: what
    acceleratorMemoryFraction leaves; on CPUs 256Mi."""
    accelerator_memory_fraction: float = Field(default=0.9, gt=0, le=1)
    """Share of accelerator memory that a replica may use."""


class Rollout(Model):
    """The rollout machines. A machine is one pod with its accelerators, one relay and accelerators / tensorParallelSize
    replicas (on CPUs slotsPerMachine / tensorParallelSize)."""

    machines: int = Field(ge=1, le=1024)
    """How many machines; what `kubectl scale` writes."""
    min_machines: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Fewest machines with which the job counts as Ready and goes on when others fail too often. Absent: `machines`.
    Below maxMachines, the operator chooses between the two, beginning with `machines`."""
    max_machines: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Most that `machines` may be set to, by `kubectl scale` too, and the most that the operator chooses. Absent:
    `machines`, and no bound for who sets that."""
    accelerators_per_machine: int = Field(default=0, ge=0, le=64)
    """Accelerators of each machine. 0: generate on CPUs."""
    accelerator: Accelerator | None = None
    """How rollout pods get them, where it differs from spec.accelerator."""
    slots_per_machine: Annotated[int | None, Field(ge=1, le=64)] = None
    """For machines without accelerators: how many engines, or ranks of an engine, each runs side by side, a thread for
    each. Absent: 1."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Accelerators of one replica; with a choice, in the first rounds."""
    allowed_tensor_parallel_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=64)], ...] | None, Field(min_length=1, max_length=8)
    ] = None
    """Sizes to choose from, for short and long rounds apart: more preemptions than the round before choose the next
    larger one, none in four rounds the next smaller one. Each divides acceleratorsPerMachine and the model's heads, and
    is a multiple of the smallest. Absent: tensorParallelSize alone, always."""
    engine: Engine = Field(default=Engine.VLLM)
    """VLLM, or Reference: a small engine in plain PyTorch for tests and for machines without vLLM."""
    engine_options: EngineOptions = EngineOptions()
    """Settings of the engine."""
    template: PodTemplate = PodTemplate()
    """Changes to the rollout pods."""

    @property
    def smallest(self) -> int:
        """Fewest machines allowed."""
        return self.machines if self.min_machines is None else self.min_machines

    @property
    def largest(self) -> int:
        """Most machines allowed."""
        return self.machines if self.max_machines is None else self.max_machines

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """All sizes that may be chosen, the smallest first."""
        return tuple(sorted({self.tensor_parallel_size, *(self.allowed_tensor_parallel_sizes or ())}))

    @property
    def slots(self) -> int:
        """Accelerators of a machine as far as layouts are concerned: on CPUs what stands in for them."""
        return self.accelerators_per_machine or self.slots_per_machine or 1


class Coordinator(Model):
    """The coordinator pod: prompts, rounds, rewards, the state store. Needs no accelerator."""

    template: PodTemplate = PodTemplate()
    """Changes to the coordinator's pod."""


class Relay(Model):
    """The chain of relays over which new weights reach the rollout machines."""

    chunk_bytes: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = 32 << 20
    """Size of the pieces in which weights travel: a relay passes a piece on as soon as it has it."""
    heartbeat_seconds: float = Field(default=0.5, gt=0, le=60)
    """How often neighbours tell each other that they live; two beats missed close the chain over a gap."""
    rebuild_timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    """How long a rebuild of the chain may take before it is reported as failed."""
    topology_keys: Annotated[tuple[LabelKey, ...], Field(max_length=4)] = ("topology.kubernetes.io/zone",)
    """Labels of nodes that say where they are, the widest first, e.g. zone, then rack: weights enter a place once, and
    leave it once. Within them machines of one node stand side by side."""


class EmptyDirCheckpoint(Model):
    """State on the node's disk. It dies with the pod: no recovery across pods."""

    size_limit: Annotated[Bytes, Field(ge=1 << 20, le=1 << 50)] | None = None
    """Most bytes it may hold, e.g. 20Gi."""


class Checkpoint(Model):
    """Where the job keeps its state: checkpoints, the coordinator's store, the final model. A scratch folder when no
    claim is named."""

    volume_claim_name: DnsName | None = None
    """An existing PersistentVolumeClaim, ReadWriteMany when trainer and coordinator may sit on different nodes."""
    empty_dir: EmptyDirCheckpoint | None = None
    """A scratch folder instead. The default when no claim is named."""
    every_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Rounds between checkpoints. One is also written at suspension and at the end."""
    keep: int = Field(default=2, ge=1, le=1000)
    """How many checkpoints to keep."""

    @property
    def survives_pods(self) -> bool:
        """Whether a new pod can go on where an old one stopped."""
        return self.volume_claim_name is not None


class Store(Model):
    """The coordinator's memory of prompts and responses, on the checkpoint volume."""

    keep_rounds: int = Field(default=1000, ge=1, le=1_000_000)
    """Rounds (OnPolicy) or updates (Asynchronous) of which every response is kept: of older ones only sums. A response
    takes some 100 bytes. At least what checkpoints need is kept, and what predictions look at."""


class ReplacementBackOff(Model):
    """How long to wait before a machine that fails again and again is filled once more. Doubles with each failure."""

    initial_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Wait after the second failure in a row; the first is repaired at once."""
    max_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest wait."""
    reset_after_seconds: float = Field(default=600.0, gt=0, le=604_800)
    """A machine without failure for so long starts again at zero."""


class ForceDelete(StrEnum):
    """Whether pods on a lost node are deleted from the API without the node's word."""

    NEVER = "Never"
    WHEN_FENCED = "WhenFenced"
    ALWAYS = "Always"


class NodeFailure(Model):
    """What to do about a node that is gone. Its machines are replaced when two witnesses report them (one of them may
    be the node's kubelet, by its silence), when graceSeconds are over, or when Kubernetes deletes their pods, whatever
    comes first. An operator that serves single namespaces sees no nodes: there the first and the last count, and
    nothing is deleted by force."""

    grace_seconds: float = Field(default=15.0, ge=0, le=3600)
    """How long a node may be NotReady before its machines are replaced without other witnesses."""
    force_delete: ForceDelete = Field(default=ForceDelete.WHEN_FENCED)
    """Whether pods that a dead node's kubelet will never report gone are deleted by force. Never; WhenFenced: when the
    Node is deleted or tainted node.kubernetes.io/out-of-service; Always: graceSeconds after they should have gone,
    though they may still run there. They block no replacement."""
    avoid_failed_nodes_seconds: float = Field(default=3600.0, ge=0, le=604_800)
    """How long no pod of the job is placed on a node that failed it. Less long when a pod finds no other node."""


class FailurePolicy(Model):
    """What to do about failures."""

    max_replacements_per_machine: int = Field(default=5, ge=0, le=1000)
    """Failures in a row after which a rollout machine is given up and the job goes on without it."""
    restart_window_seconds: float = Field(default=600.0, ge=0, le=604_800)
    """What fails on a rollout machine is first restarted there. A second failure within so long gives the machine up:
    it gets a new pod, on another node. 0: it is restarted there for ever."""
    max_rounds_without_group: int = Field(default=3, ge=1, le=1000)
    """Rounds in a row without a single group to train on (rewards keep failing), after which the job fails."""
    backoff: ReplacementBackOff = ReplacementBackOff()
    """Waiting between replacements."""
    node_failure: NodeFailure = NodeFailure()
    """Lost nodes."""


class CleanPodPolicy(StrEnum):
    """Which pods go when the job has ended."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RunPolicy(Model):
    """Bounds of the run, named as in Job and JobSet."""

    backoff_limit: int = Field(default=5, ge=0, le=1000)
    """Failures in a row of the coordinator or the trainer group that are repaired; one more fails the job."""
    startup_deadline_seconds: Annotated[int | None, Field(ge=1, le=604_800)] = None
    """The job fails when its pods are not all ready so long after start or resumption."""
    active_deadline_seconds: Annotated[int | None, Field(ge=1, le=315_360_000)] = None
    """The job fails when it has not completed so long after start or resumption."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=315_360_000)] = None
    """The job is deleted so long after it has ended. Absent: it stays."""
    clean_pod_policy: CleanPodPolicy = Field(default=CleanPodPolicy.RUNNING)
    """At the end delete All pods, those still Running, or None."""
    drain_seconds: int = Field(default=60, ge=0, le=86_400)
    """How long a machine that leaves, or a job that is suspended, may take to hand over its work."""


class Gang(StrEnum):
    """Whether the pods without which the job cannot begin are scheduled all or none, and whose PodGroup says so."""

    NONE = "None"
    NATIVE = "Native"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KAI = "KAI"


class Scheduling(Model):
    """How pods find nodes; more in the templates."""

    scheduler_name: DnsName | None = None
    """The scheduler of all pods. A template's schedulerName goes before it. Absent: the cluster's default."""
    gang: Gang = Field(default=Gang.NONE)
    """Whether coordinator, trainer and minMachines rollout machines are placed together or not at all. None; Native: by
    Kubernetes itself (1.37, feature gate GenericWorkload); Coscheduling, Volcano, KAI: by that scheduler, which
    schedulerName may name."""
    priority_class_name: DnsName | None = None
    """Priority class of all pods. A template's priorityClassName goes before it."""
    accelerator_resource: QualifiedName = DEFAULT_RESOURCE
    """Deprecated: use spec.accelerator, which takes the place of this. Counts only where that is absent."""
