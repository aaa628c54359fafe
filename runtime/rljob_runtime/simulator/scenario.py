"""Scenario: a job with its machines, without faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api import RLJob, load
from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.spec.training import AUTO, Sampler
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.scheduling.round_planner.planner import FIRST_RESPONSES
from rljob_runtime.scheduling.round_planner.plans import RESPONSE_FACTORS
from rljob_runtime.simulator.episode_side import EpisodeScenario
from rljob_runtime.simulator.faults.spec_edits import Edit
from rljob_runtime.simulator.peers.cluster import ClusterSpec
from rljob_runtime.simulator.peers.code_rewards import Programs
from rljob_runtime.simulator.peers.inputs import WorkloadLengths
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.workloads import Workload


@dataclass(frozen=True)
class Experience:
    """Asynchronous settings: see `spec.training.ExperienceBuffer` and `spec.training.Repack`.

    `capacity` in groups; `repack_seconds` None for no repack."""

    sampler: Sampler = Sampler.FIFO
    capacity: int | None = None
    bound: int | None = None
    repack_seconds: float | None = 5.0

    def to_spec(self) -> dict[str, object]:
        """Return the fields of the spec."""
        repack = {} if self.repack_seconds is None else {"intervalSeconds": self.repack_seconds}
        return {
            "mode": "Asynchronous",
            "experience": {
                "sampler": self.sampler.value,
                **({} if self.capacity is None else {"maxPrompts": self.capacity}),
                **({} if self.bound is None else {"maxStaleness": self.bound}),
            },
            "repack": {"enabled": self.repack_seconds is not None, **repack},
        }


@dataclass(frozen=True)
class Elastic:
    """Elastic rollout: the operator chooses `smallest` to `largest` machines.

    `trainer_accelerators` are idle during generation."""

    smallest: int
    largest: int
    trainer_accelerators: int

    @property
    def bounds(self) -> dict[str, object]:
        """Return the bounds for the rollout's spec."""
        return {"minMachines": self.smallest, "maxMachines": self.largest}

    @property
    def trainer(self) -> dict[str, object]:
        """Return the trainer's spec."""
        return {"trainer": {"acceleratorsPerReplica": self.trainer_accelerators}}


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: its prompts, the responses to each, and the rounds between two of them."""

    prompts: int
    responses: int
    every_rounds: int

    def to_spec(self, number: int) -> dict[str, object]:
        """Return the fields of the spec. The simulator's prompts have no content."""
        return {
            "name": f"check-{number}",
            "prompts": {"reasoningGym": {"task": "basic_arithmetic"}},
            "everyRounds": self.every_rounds,
            "responsesPerPrompt": self.responses,
            "maxPrompts": self.prompts,
        }


@dataclass(frozen=True)
class BestModel:
    """The model of the first evaluation's best round is kept. `room`: see `TrainerDisk`."""

    metric: EvaluationMetric
    room: int | None = None


@dataclass(frozen=True)
class Scenario:
    """A job with its machines. `workload`: a name or a path for `workloads.open_workload`."""

    seed: int
    machines: int
    rounds: int
    prompts: int
    responses: int
    prompts_an_epoch: int
    checkpoint_every: int
    site: ClusterSpec
    costs: TrainerCosts
    workload: str
    reward_seconds: float
    tail_factor: float | None = None
    """Factor of prompts and responses; None without tail batching."""
    response_factor: float | None = None
    """Factor of responses, if it differs."""
    auto: bool = False
    """The job selects tail batching, its factors and streaming automatically, after `first_responses`."""
    first_responses: int = FIRST_RESPONSES
    dynamic_sampling: bool = False
    stream_training: bool = False
    reward_levels: int = 1000
    """Number of distinct rewards."""
    adapt: Callable[[Settings], Settings] | None = None
    """Change of the coordinator for an ablation that no spec can express."""
    programs: Programs | None = None
    """Programs that rewards run; they replace `reward_seconds` and `reward_levels`."""
    experience: Experience | None = None
    """Experience buffer of mode Asynchronous."""
    sources: tuple[tuple[str, float], ...] = ()
    """Prompt sources with their weights; empty for one source."""
    edit: Edit | None = None
    """The user's edit during the run."""
    evaluations: tuple[Evaluated, ...] = ()
    best_model: BestModel | None = None
    """None: no model is kept, nor without an evaluation."""
    elastic: Elastic | None = None
    """None: the user sets the number of machines."""
    episodes: EpisodeScenario | None = None
    """Environments, in which responses take several turns; None for one turn."""
    max_prompt_tokens: int = 500
    max_response_tokens: int = 1000
    heartbeat_seconds: float = 0.5
    random_layout_changes: bool = False
    """Whether the operator changes layouts randomly after rounds, more often than the planner would."""
    switches: bool = False
    """Whether machines change their TP size inside rounds, at random."""
    profiles: bool = False
    """Whether machines measure sizes that they never ran while the trainer updates."""
    poll_seconds: float = 0.5
    """Longest wait of a poll."""
    samples: bool = False
    """Whether coordinators write files of samples, which is checked at the end."""
    store_seconds: float = 0.001
    """Per transaction."""
    prompts_seconds: float = 2.0
    """Time to read the prompts; machines join meanwhile."""
    patience_seconds: float = 1800.0
    """Time after the last fault and the horizon within which the job must end."""

    @property
    def job(self) -> RLJob:
        """Return the RLJob as applied."""
        return load(
            {
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "metadata": {"name": f"seed-{self.seed}", "uid": f"seed-{self.seed}"},
                "spec": {
                    "rounds": self.rounds,
                    "model": {"source": "package://rljob/toy"},
                    "data": {
                        **self._prompts,
                        "maxPromptTokens": self.max_prompt_tokens,
                        "maxResponseTokens": self.max_response_tokens,
                        "seed": self.seed,
                    },
                    "rewards": [{"name": "right", "kind": "ReasoningGym"}],
                    "algorithm": {
                        "promptsPerRound": self.prompts,
                        "responsesPerPrompt": self.responses,
                        "maxTokensPerMicrobatch": self.max_prompt_tokens + self.max_response_tokens,
                        "dynamicSampling": {"enabled": self.dynamic_sampling},
                    },
                    "tailBatching": {
                        "enabled": AUTO if self.auto else self.tail_factor is not None,
                        "promptFactor": AUTO if self.auto else self.tail_factor or 1,
                        "responseFactor": AUTO if self.auto else self.response_factor or self.tail_factor or 1,
                    },
                    "streamTraining": {"enabled": AUTO if self.auto else self.stream_training},
                    "adaptiveTensorParallel": {"enabled": self.profiles},
                    "rollout": {"machines": self.machines, "engine": "Reference", **self._layouts},
                    "evaluation": [one.to_spec(number) for number, one in enumerate(self.evaluations)],
                    "relay": {"heartbeatSeconds": self.heartbeat_seconds},
                    "checkpoint": {"emptyDir": {}, "everyRounds": self.checkpoint_every, **self._keep_best},
                    **(self.experience.to_spec() if self.experience is not None else {}),
                    **({} if self.elastic is None else self.elastic.trainer),
                    **({} if self.episodes is None else self.episodes.to_spec()),
                },
            }
        )

    @property
    def _prompts(self) -> dict[str, object]:
        """Return the prompts of the data's spec."""
        gym = {"reasoningGym": {"task": "basic_arithmetic"}}
        if not self.sources:
            return {"prompts": gym}
        return {"sources": [{"name": name, "weight": weight, "prompts": gym} for name, weight in self.sources]}

    @property
    def _keep_best(self) -> dict[str, object]:
        """Return the model to keep for the checkpoint's spec."""
        if self.best_model is None or not self.evaluations:
            return {}
        name = self.evaluations[0].to_spec(0)["name"]
        return {"keepBest": {"evaluation": name, "metric": self.best_model.metric.value}}

    @property
    def _layouts(self) -> dict[str, object]:
        """Return the layouts of machines with more than one replica of one accelerator."""
        size, wider = self.site.tensor_parallel, [size for size, _ in self.site.wider]
        if size == 1 and not wider and not self.site.shares_accelerators and self.elastic is None:
            return {}
        # A worker that needs no accelerators has none.
        alone = self.site.lendable and not self.site.shares_accelerators
        machine = "slotsPerMachine" if alone else "acceleratorsPerMachine"
        return {
            machine: self.site.replicas * size,
            "tensorParallelSize": size,
            "allowedTensorParallelSizes": [size, *wider],
            **({} if self.elastic is None else self.elastic.bounds),
        }

    @property
    def launched_responses(self) -> int:
        """Maximum of launched responses per prompt."""
        factor = max(RESPONSE_FACTORS) if self.auto else self.response_factor or self.tail_factor or 1
        return math.ceil(self.responses * factor)

    def lengths(self, workload: Workload) -> WorkloadLengths:
        """Return the lengths that prompts have and engines generate."""
        plays_turns = self.episodes is not None and self.episodes.plays_workload
        return WorkloadLengths(workload, self.launched_responses, self.max_prompt_tokens, plays_turns)

    @property
    def horizon(self) -> float:
        """Approximate seconds of the job without faults."""
        return 5.0 + 8.0 * self.rounds
