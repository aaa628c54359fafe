"""Resources of a job: trainer, rollout machines, coordinator, relay, checkpoints, store and samples."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.fields import Bytes, DnsLabel, DnsName, LabelKey, Model
from rljob_api.spec.accelerators import Accelerator
from rljob_api.spec.template import PodTemplate


class Trainer(Model):
    """The trainer pods: one rank per accelerator, or one per pod without accelerators."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Trainer pods. They run and fail as one group."""
    accelerators_per_replica: int = Field(default=0, ge=0, le=64)
    """Accelerators of each pod. 0: train on CPUs."""
    accelerator: Accelerator | None = None
    """How trainer pods get accelerators, if it differs from spec.accelerator."""
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
    """Fewest machines with which the job is Ready, and continues when others fail too often. Absent: `machines`. Where
    it is below maxMachines, the operator chooses a number between the two, starting with `machines`."""
    max_machines: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Most machines: the upper bound of `machines`, by `kubectl scale` too, and of the operator's choice. Absent:
    `machines` has no upper bound, and the operator chooses no more than its value."""
    accelerators_per_machine: int = Field(default=0, ge=0, le=64)
    """Accelerators of each machine. 0: generate on CPUs."""
    accelerator: Accelerator | None = None
    """How rollout pods get accelerators, if it differs from spec.accelerator."""
    slots_per_machine: Annotated[int | None, Field(ge=1, le=64)] = None
    """For machines without accelerators: number of engines, or ranks of an engine, each with one thread. Absent: 1."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Accelerators of one replica, on CPUs its slots. With allowedTensorParallelSizes: those of the first rounds."""
    allowed_tensor_parallel_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=64)], ...] | None, Field(min_length=1, max_length=8)
    ] = None
    """Tensor-parallel sizes to choose from, separately for short and long rounds. A round with more preemptions than
    the one before is followed by the next larger size, four rounds without any by the next smaller one. Each size
    divides acceleratorsPerMachine and the model's heads, and is a multiple of the smallest. Absent: always
    tensorParallelSize."""
    engine: Engine = Field(default=Engine.VLLM)
    """VLLM, or Reference: a small engine in plain PyTorch for tests and for machines without vLLM."""
    engine_options: EngineOptions = EngineOptions()
    """Settings of the engine: concurrent requests and memory."""
    template: PodTemplate = PodTemplate()
    """Changes and additions to the pods of rollout machines."""

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


class KeepBest(Model):
    """The choice of the best weights.

    The models of evaluated rounds stay on the checkpoint volume until better ones are known.
    """

    evaluation: DnsLabel
    """Name of an evaluation of spec.evaluation."""
    metric: EvaluationMetric = Field(default=EvaluationMetric.AVERAGE)
    """Average: the mean reward of a response. PassAtK: the chance that one of responsesPerPrompt responses passes. Of
    equal rounds the earliest is the best."""


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
    keep_best: KeepBest | None = None
    """Keep the model of the best evaluation, and export it as `best/` beside the final model."""

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

    Those of evaluations are in `evaluation-samples/`. They may change at any time, and take effect with the next round.
    """

    per_round: PerRound = 8
    """Responses of each round and of each result of an evaluation: a mix of the best, the worst, random ones, and some
    that are not trained on. All keeps every response, and 0 none."""
    keep_rounds: int = Field(default=50, ge=1, le=1_000_000)
    """Rounds whose files are kept, the newest ones; and the newest files of each evaluation."""

    @property
    def count(self) -> int | None:
        """Return the most responses of a round; None for all."""
        return None if self.per_round == ALL else self.per_round
