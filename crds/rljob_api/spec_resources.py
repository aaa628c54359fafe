"""Resources of a job: trainer, rollout machines, coordinator, relay, checkpoints, failures and scheduling."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

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
    """Labels and annotations of the pods besides the operator's."""

    labels: Labels = Field(default_factory=dict)
    """Labels. Those under rljob.dev/ are the operator's."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations. Those under rljob.dev/ are the operator's."""


class PodTemplate(Model):
    """Changes and additions to the pods of a role, written as a pod template.

    The operator fills in the rest, so an empty template is complete.
    """

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations."""
    spec: PodSpec = Field(default_factory=dict)
    """A partial PodSpec: containers, volumes, nodeSelector, tolerations, affinity, imagePullSecrets and so on.
    Containers are merged by name: `main` overrides image, command, args, env, resources, volumeMounts, probes and
    securityContext of the operator's; every other one is a sidecar. In the coordinator's pod, `ray-head` belongs to the
    operator too, and so does `rewards`, if a reward is of kind Code, or of kind Python with a function that is not
    built in."""

    def container(self, name: str = MAIN_CONTAINER) -> dict[str, Any]:
        """Return the container of that name as the user wrote it, or an empty one.

        The template may be unchecked.
        """
        containers = self.spec.get("containers")
        found = containers if isinstance(containers, list) else []
        return next((one for one in found if isinstance(one, dict) and one.get("name") == name), {})

    def sidecars(self, ours: Collection[str] = (MAIN_CONTAINER,)) -> list[dict[str, Any]]:
        """Return the containers that are not the operator's."""
        return [container for container in self.spec.get("containers", []) if container.get("name") not in ours]


class Trainer(Model):
    """The trainer pods: one rank per accelerator, or one per pod without accelerators."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Trainer pods. They run and fail as one group."""
    accelerators_per_replica: int = Field(default=0, ge=0, le=64)
    """Accelerators of each pod. 0: train on CPUs."""
    accelerator: Accelerator | None = None
    """How trainer pods get them, if it differs from spec.accelerator."""
    template: PodTemplate = PodTemplate()
    """Changes to the trainer's pods."""

    @property
    def ranks(self) -> int:
        """Count the processes that train together."""
        return self.replicas * max(1, self.accelerators_per_replica)


class Engine(StrEnum):
    """The rollout engine."""

    VLLM = "VLLM"
    REFERENCE = "Reference"


class EngineOptions(Model):
    """Settings of the rollout engine."""

    max_concurrent_requests: int = Field(default=256, ge=1, le=65_536)
    """Most responses that one replica generates concurrently."""
    kv_cache_bytes: Annotated[Bytes, Field(ge=1 << 16, le=1 << 45)] | None = None
    """KV cache on each accelerator of a replica (on CPUs: of each slot), e.g. 512Mi. Absent: what
    acceleratorMemoryFraction leaves; on CPUs 256Mi."""
    accelerator_memory_fraction: float = Field(default=0.9, gt=0, le=1)
    """Share of accelerator memory that a replica may use."""


class Rollout(Model):
    """The rollout machines.

    A machine is one pod with its accelerators, one relay and accelerators / tensorParallelSize replicas (on CPUs
    slotsPerMachine / tensorParallelSize).
    """

    machines: int = Field(ge=1, le=1024)
    """Number of machines; what `kubectl scale` writes."""
    min_machines: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Fewest machines with which the job is Ready, and continues when others fail too often. Absent: `machines`. Below
    maxMachines, the operator chooses between the two, starting with `machines`."""
    max_machines: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Largest value of `machines`, by `kubectl scale` too, and the operator's largest choice. Absent: `machines`, and
    no bound for its value."""
    accelerators_per_machine: int = Field(default=0, ge=0, le=64)
    """Accelerators of each machine. 0: generate on CPUs."""
    accelerator: Accelerator | None = None
    """How rollout pods get them, if it differs from spec.accelerator."""
    slots_per_machine: Annotated[int | None, Field(ge=1, le=64)] = None
    """For machines without accelerators: number of engines, or ranks of an engine, each with one thread. Absent: 1."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Accelerators of one replica; with a choice of sizes, in the first rounds."""
    allowed_tensor_parallel_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=64)], ...] | None, Field(min_length=1, max_length=8)
    ] = None
    """Sizes to choose from, separately for short and long rounds. More preemptions than the round before choose the
    next larger size, none in four rounds the next smaller one. Each divides acceleratorsPerMachine and the model's
    heads, and is a multiple of the smallest. Absent: always tensorParallelSize."""
    engine: Engine = Field(default=Engine.VLLM)
    """VLLM, or Reference: a small engine in plain PyTorch for tests and for machines without vLLM."""
    engine_options: EngineOptions = EngineOptions()
    """Settings of the engine."""
    template: PodTemplate = PodTemplate()
    """Changes to the rollout pods."""

    @property
    def smallest(self) -> int:
        """Return the fewest machines allowed."""
        return self.machines if self.min_machines is None else self.min_machines

    @property
    def largest(self) -> int:
        """Return the most machines allowed."""
        return self.machines if self.max_machines is None else self.max_machines

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """Return all sizes that may be chosen, the smallest first."""
        return tuple(sorted({self.tensor_parallel_size, *(self.allowed_tensor_parallel_sizes or ())}))

    @property
    def slots(self) -> int:
        """Count the engine slots of a machine: its accelerators, or what replaces them on CPUs."""
        return self.accelerators_per_machine or self.slots_per_machine or 1


class Coordinator(Model):
    """The coordinator pod: prompts, rounds, rewards, the state store. Needs no accelerator."""

    template: PodTemplate = PodTemplate()
    """Changes to the coordinator's pod."""


class Relay(Model):
    """The chain of relays over which new weights reach the rollout machines."""

    chunk_bytes: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = 32 << 20
    """Size of the chunks of weights. A relay forwards a chunk as soon as it has received it."""
    heartbeat_seconds: float = Field(default=0.5, gt=0, le=60)
    """Seconds between heartbeats of neighbours. After two missed heartbeats the chain is repaired without the
    machine."""
    rebuild_timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest rebuild of the chain before it is reported as failed."""
    topology_keys: Annotated[tuple[LabelKey, ...], Field(max_length=4)] = ("topology.kubernetes.io/zone",)
    """Labels of nodes with their location, the widest first, e.g. zone, then rack. Weights enter a location once, and
    leave it once. Machines of one node are always neighbours."""


class EmptyDirCheckpoint(Model):
    """State on the node's disk. It is lost with the pod: no recovery across pods."""

    size_limit: Annotated[Bytes, Field(ge=1 << 20, le=1 << 50)] | None = None
    """Most bytes it may hold, e.g. 20Gi."""


class Checkpoint(Model):
    """Storage of the job's state: checkpoints, the coordinator's store and the final model.

    A scratch folder when no claim is named.
    """

    volume_claim_name: DnsName | None = None
    """An existing PersistentVolumeClaim, ReadWriteMany when trainer and coordinator may run on different nodes."""
    empty_dir: EmptyDirCheckpoint | None = None
    """A scratch folder instead. The default when no claim is named."""
    every_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Rounds between checkpoints. One is also written at suspension and at the end."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Number of checkpoints to keep."""

    @property
    def survives_pods(self) -> bool:
        """Tell whether a new pod can resume from an old one's state."""
        return self.volume_claim_name is not None


class Store(Model):
    """The coordinator's store of prompts and responses, on the checkpoint volume."""

    keep_rounds: int = Field(default=1000, ge=1, le=1_000_000)
    """Rounds (OnPolicy) or updates (Asynchronous) of which every response is kept; of older ones only sums. A response
    takes about 100 bytes. What checkpoints and predictions need is always kept."""


ALL: Literal["All"] = "All"
"""Every response."""
MOST_SAMPLES = 10_000


def _per_round(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if value == ALL:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SAMPLES:
        advice = f"must be an integer from 0 to {MOST_SAMPLES}, or All"
        raise PydanticCustomError("spelling", "{advice}", {"advice": advice})
    return handler(value)


PerRound = Annotated[
    int | Literal["All"],
    WrapValidator(_per_round),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "minimum": 0, "maximum": MOST_SAMPLES, "pattern": f"^{ALL}$"}),
]


class Samples(Model):
    """Responses that are kept as text, in `samples/` beside `rounds.jsonl`: to read what the model answers.

    They may change at any time, and take effect with the next round.
    """

    per_round: PerRound = 8
    """Responses of each round: a mix of the best, the worst, random ones, and some that are not trained on. All keeps
    every response, and 0 none."""
    keep_rounds: int = Field(default=50, ge=1, le=1_000_000)
    """Rounds whose files are kept, the newest ones."""

    @property
    def count(self) -> int | None:
        """Return the most responses of a round; None for all."""
        return None if self.per_round == ALL else self.per_round


class ReplacementBackOff(Model):
    """Pause before a machine that fails repeatedly is replaced. It doubles with each failure."""

    initial_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Pause after the second failure in a row; after the first there is none."""
    max_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest pause."""
    reset_after_seconds: float = Field(default=600.0, gt=0, le=604_800)
    """Seconds without a failure after which a machine starts again without a pause."""


class ForceDelete(StrEnum):
    """Whether pods on a lost node are deleted by force."""

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
    """Which pods are deleted when the job has ended."""

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
    """How pods find nodes; more in the templates."""

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
