"""Job: an RLJob and its spec, whose parts the other modules of the package have."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from rljob_api.constants import API_VERSION, KIND, MANAGED_BY_OPERATOR, ROLE_ROLLOUT, ROLE_TRAINER, claim_path
from rljob_api.fields import Model, QualifiedName, Timestamp, map_by
from rljob_api.spec.accelerators import Accelerator
from rljob_api.spec.algorithm import (
    Algorithm,
)
from rljob_api.spec.environments import (
    Environment,
    EpisodeLimits,
    EpisodeVersions,
)
from rljob_api.spec.evaluation import Evaluation
from rljob_api.spec.observers import ObserverSpec
from rljob_api.spec.policies import (
    FailurePolicy,
    RunPolicy,
    Scheduling,
)
from rljob_api.spec.resources import (
    Checkpoint,
    Coordinator,
    Relay,
    Rollout,
    Samples,
    Store,
    Trainer,
)
from rljob_api.spec.rewards import Reward, RewardKind
from rljob_api.spec.training import (
    AdaptiveTensorParallel,
    DataSpec,
    ExperienceBuffer,
    Mode,
    ModelSpec,
    Repack,
    StreamTraining,
    TailBatching,
)
from rljob_api.status import RLJobStatus


class RLJobSpec(Model):
    """Desired state: the model, its training, and the machines."""

    mode: Mode = Field(default=Mode.ON_POLICY)
    """OnPolicy: generate, train and publish in turn. Asynchronous: rollouts and training run concurrently, each replica
    at its own speed (Laminar)."""
    suspend: bool = False
    """Stop the job, delete its pods and keep its state. False resumes it."""
    managed_by: QualifiedName = MANAGED_BY_OPERATOR
    """Controller of the job. With another value this operator ignores it. Immutable."""
    rounds: int = Field(ge=1, le=1_000_000)
    """Updates after which the job is complete."""
    run_policy: RunPolicy = RunPolicy()
    model: ModelSpec
    data: DataSpec
    rewards: Annotated[tuple[Reward, ...], Field(max_length=16, json_schema_extra=map_by("name"))] = ()
    """How responses are scored: the weighted sum of these. They may be left out if every environment gives a reward."""
    environments: Annotated[tuple[Environment, ...], Field(max_length=16, json_schema_extra=map_by("name"))] = ()
    """Programs in which a response takes several turns, with tools or by an agent. The record's field `environment`
    names its own; absent, it is the first."""
    episode: EpisodeLimits | None = None
    """Limits and weights of the episodes in environments."""
    algorithm: Algorithm = Algorithm()
    tail_batching: TailBatching = TailBatching()
    """RollPacker's tail batching. OnPolicy only."""
    stream_training: StreamTraining = StreamTraining()
    """RollPacker's stream trainer. OnPolicy only."""
    experience: ExperienceBuffer = ExperienceBuffer()
    """The experience buffer between rollouts and training. Asynchronous only."""
    repack: Repack = Repack()
    """Laminar's repack. Asynchronous only."""
    adaptive_tensor_parallel: AdaptiveTensorParallel = AdaptiveTensorParallel()
    """PAT: change of the tensor parallel size inside a round. OnPolicy only."""
    accelerator: Accelerator | None = None
    """How pods get their accelerators; trainer.accelerator and rollout.accelerator override it. Absent:
    nvidia.com/gpu."""
    trainer: Trainer = Trainer()
    rollout: Rollout
    coordinator: Coordinator = Coordinator()
    relay: Relay = Relay()
    checkpoint: Checkpoint = Checkpoint()
    store: Store = Store()
    evaluation: Annotated[tuple[Evaluation, ...], Field(max_length=8, json_schema_extra=map_by("name"))] = ()
    """Prompts that are never trained on, and when the weights answer them."""
    samples: Samples = Samples()
    observers: Annotated[tuple[ObserverSpec, ...], Field(max_length=8)] = ()
    """Programs that receive the metrics of each round, as W&B, MLflow and OpenTelemetry."""
    failure_policy: FailurePolicy = FailurePolicy()
    scheduling: Scheduling = Scheduling()

    def claims(self) -> tuple[str, ...]:
        """Name the PersistentVolumeClaims of `pvc://` sources, sorted. They are mounted at `CLAIMS_DIR`."""
        sources = [*self.data.prompts_of.values(), *(one.prompts for one in self.evaluation)]
        paths = [self.model.source, *(path for prompts in sources for path in prompts.paths())]
        paths += [self.data.chat_template_file] if self.data.chat_template_file is not None else []
        return tuple(sorted({found[0] for found in map(claim_path, paths) if found is not None}))

    def accelerator_of(self, role: str) -> Accelerator:
        """Return how a role's pods get their accelerators."""
        own = {ROLE_TRAINER: self.trainer.accelerator, ROLE_ROLLOUT: self.rollout.accelerator}.get(role)
        return own or self.accelerator or Accelerator(resource=self.scheduling.accelerator_resource)

    def accelerators_of(self, role: str) -> int:
        """Count the accelerators of each pod of a role."""
        counts = {
            ROLE_TRAINER: self.trainer.accelerators_per_replica,
            ROLE_ROLLOUT: self.rollout.accelerators_per_machine,
        }
        return counts.get(role, 0)

    def rewards_of(self, source: str) -> tuple[Reward, ...]:
        """Return the rules that score the responses to a source's prompts; of "", all."""
        named = next((one.rewards for one in self.data.sources or () if one.name == source), None)
        return tuple(reward for reward in self.rewards if named is None or reward.name in named)

    @property
    def switch_sizes(self) -> tuple[int, ...]:
        """Return the sizes between which machines switch inside a round, the smallest first; empty without switches."""
        adaptive = self.adaptive_tensor_parallel
        sizes = adaptive.sizes or self.rollout.tensor_parallel_sizes
        return tuple(sorted(sizes)) if adaptive.enabled and len(sizes) > 1 else ()

    @property
    def mixes_versions(self) -> bool:
        """Tell whether newer weights may generate later turns of an episode."""
        chosen = self.episode.versions if self.episode is not None else None
        return bool(self.environments) and self.mode is Mode.ASYNCHRONOUS and chosen is not EpisodeVersions.SINGLE

    @property
    def adds_environment_rewards(self) -> bool:
        """Tell whether an environment's reward is a term of the sum, and does not count in its place."""
        return any(reward.kind is RewardKind.ENVIRONMENT for reward in self.rewards)

    @property
    def rewards_apart(self) -> bool:
        """Tell whether rewards run foreign code: then the coordinator's pod has a container `rewards`."""
        return any(reward.apart for reward in self.rewards)

    @property
    def head_apart(self) -> bool:
        """Tell whether the coordinator's pod has a container `ray-head`.

        With the user's own program in place of the coordinator it has none.
        """
        return "command" not in self.coordinator.template.container()

    def to_json(self) -> str:
        """Render the complete spec, defaults included. Equal specs have equal texts."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Metadata(Model):
    """The used part of the object's metadata."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None


class RLJob(Model):
    """One elastic RL post-training run of a language model.

    It has a trainer, rollout machines that may scale and fail, a chain of relays that carries new weights to them, and
    a coordinator that runs the rounds.
    """

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata
    spec: RLJobSpec
    """Desired state."""
    status: RLJobStatus = RLJobStatus()
    """Observed state. The coordinator writes `runtime`, and the operator everything else."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    def manifest(self) -> dict[str, Any]:
        """Return the object to apply, without status and without the server's fields."""
        metadata = self.metadata.model_dump(
            mode="json", by_alias=True, exclude_defaults=True, include={"name", "namespace", "labels", "annotations"}
        )
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, "spec": self.spec.to_dict()}
