"""Scenario: a job with its machines, without faults.

A seed gives a small one (at most 8 machines and 100 trajectories) that differs as much as possible from others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from rljob_api import RLJob, load
from rljob_api.spec_training import AUTO, Mode, Sampler
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.scheduling.round_planner.planner import FIRST_RESPONSES
from rljob_runtime.scheduling.round_planner.plans import RESPONSE_FACTORS
from rljob_runtime.simulator.faults.plan import FaultPlan, draw_plan
from rljob_runtime.simulator.faults.spec_edits import Edit, draw_edit
from rljob_runtime.simulator.peers.cluster import ClusterSpec
from rljob_runtime.simulator.peers.code_rewards import Programs
from rljob_runtime.simulator.peers.replica import EngineKind
from rljob_runtime.simulator.peers.trainer import TrainerCosts

MOST_MACHINES = 8
MOST_TRAJECTORIES = 100


@dataclass(frozen=True)
class Experience:
    """Asynchronous settings: see `spec_training.ExperienceBuffer` and `spec_training.Repack`.

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
    edit: Edit | None = None
    """The user's edit during the run."""
    elastic: Elastic | None = None
    """None: the user sets the number of machines."""
    max_prompt_tokens: int = 500
    max_response_tokens: int = 1000
    heartbeat_seconds: float = 0.5
    restless: bool = False
    """Whether the operator changes layouts randomly after rounds, more often than the planner would."""
    poll_seconds: float = 0.5
    """Longest wait of a poll."""
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
                        "prompts": {"reasoningGym": {"task": "basic_arithmetic"}},
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
                    "rollout": {"machines": self.machines, "engine": "Reference", **self._layouts},
                    "relay": {"heartbeatSeconds": self.heartbeat_seconds},
                    "checkpoint": {"emptyDir": {}, "everyRounds": self.checkpoint_every},
                    **(self.experience.to_spec() if self.experience is not None else {}),
                    **({} if self.elastic is None else self.elastic.trainer),
                },
            }
        )

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

    @property
    def horizon(self) -> float:
        """Approximate seconds of the job without faults."""
        return 5.0 + 8.0 * self.rounds


def draw_scenario(seed: int, mode: Mode = Mode.ON_POLICY) -> Scenario:
    """Draw the scenario of a seed in this mode."""
    scenario = _draw_rounds(seed)
    return scenario if mode is Mode.ON_POLICY else _asynchronous(scenario, random.Random(f"{seed}/asynchronous"))


def _asynchronous(scenario: Scenario, random_: random.Random) -> Scenario:
    """Convert to asynchronous: the same job and machines without the techniques of rounds, and without loans."""
    experience = Experience(
        sampler=random_.choice(list(Sampler)),
        capacity=random_.choice([None, scenario.prompts, scenario.prompts + 1, 4 * scenario.prompts]),
        bound=random_.choice([None, None, 0, 1, 2]),
        repack_seconds=random_.choice([None, 0.5, 2.0]),
    )
    return replace(
        scenario,
        experience=experience,
        tail_factor=None,
        response_factor=None,
        auto=False,
        stream_training=False,
        site=replace(scenario.site, lendable=False, shares_accelerators=False),
    )


def _draw_rounds(seed: int) -> Scenario:
    random_ = random.Random(f"{seed}/scenario")
    responses = random_.choice([2, 3, 4, 8])
    rounds = random_.randint(1, 4)
    prompts = random_.randint(1, max(1, MOST_TRAJECTORIES // (responses * rounds)))
    step_seconds = random_.choice([0.005, 0.01])
    scenario = Scenario(
        seed=seed,
        machines=random_.choice([1, 2, 2, 3, 3, 4, 6, MOST_MACHINES]),
        rounds=rounds,
        prompts=prompts,
        responses=responses,
        prompts_an_epoch=random_.choice([prompts, prompts + 1, 3 * prompts, 1000]),
        checkpoint_every=random_.choice([1, 2, 3]),
        site=ClusterSpec(
            replicas=random_.choice([1, 1, 2, 4]),
            engine=EngineKind(
                law=LatencyModel(((1, step_seconds), (64, 2 * step_seconds)), 1e-7, 0.02, 1e-5, 1e-9),
                kv_tokens=random_.choice([4_000, 20_000, 1_000_000]),
                max_sequences=random_.choice([4, 64]),
                stream_seconds=random_.choice([0.25, 1.0]),
                load_seconds=random_.choice([0.0, 0.5]),
            ),
            latency=random_.choice([0.001, 0.01]),
            hop_seconds=random_.choice([0.05, 0.5]),
            transfer_seconds=random_.choice([0.0, 2.0]),
        ),
        costs=TrainerCosts(
            start=random_.choice([0.0, 3.0]),
            step=random_.choice([0.5, 2.0]),
            token=random_.choice([0.0, 1e-4]),
            publish=random_.choice([0.0, 1.0]),
            checkpoint=random_.choice([0.0, 1.0]),
        ),
        workload=random_.choice(["rollpacker-7b-8k", "dapo-32b"]),
        reward_seconds=random_.choice([0.05, 1.0]),
        tail_factor=random_.choice([None, 1.0, 1.25, 1.5]),
        dynamic_sampling=random_.random() < 0.25,
        reward_levels=random_.choice([4, 1000]),
        stream_training=random_.random() < 0.5,
        auto=random_.random() < 0.25,
        first_responses=4,
    )
    # Later additions draw from separate streams, so that a seed's job does not change.
    for topic, with_more in _LATER.items():
        scenario = with_more(scenario, random.Random(f"{seed}/{topic}"))
    return scenario


def _with_layouts(scenario: Scenario, random_: random.Random) -> Scenario:
    """Permit all fitting TP sizes in half of the jobs whose machines have several replicas."""
    site = scenario.site
    engine, sizes = site.engine, [size for size in (2, 4) if site.replicas % size == 0]
    if not sizes or random_.random() < 0.5:
        return scenario
    wider = tuple((size, replace(engine, kv_tokens=3 * size * engine.kv_tokens)) for size in sizes)
    site = replace(site, wider=wider, layout_seconds=random_.choice([0.1, 1.0]))
    return replace(scenario, site=site, restless=random_.random() < 0.75)


def _with_loans(scenario: Scenario, random_: random.Random) -> Scenario:
    """Permit loans in half of the jobs that may stream; training is slow enough in them for a loan to pay."""
    if not scenario.stream_training or scenario.machines < 2 or random_.random() < 0.5:
        return scenario
    token = random_.choice([10.0, 40.0]) / (scenario.prompts * scenario.responses * scenario.max_response_tokens)
    costs = replace(
        scenario.costs,
        token=token,
        loaned_token=token * random_.choice([0.05, 0.05, 1.0]),
        loan_start=random_.choice([0.0, 0.5]),
        bring=random_.choice([0.0, 0.5]),
    )
    site = replace(scenario.site, lendable=True, shares_accelerators=random_.random() < 0.5)
    return replace(scenario, site=site, costs=costs)


def _with_programs(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let rewards of a quarter of the jobs run programs under the adaptive timeout.

    Two rewards, right or wrong, are equal too often for dynamic sampling: such a job would find nothing to learn."""
    if (scenario.dynamic_sampling and scenario.responses < 3) or random_.random() < 0.75:
        return scenario
    programs = Programs(
        seconds=random_.choice([0.05, 1.0]),
        right_share=0.55,
        endless_share=random_.choice([0.0, 0.05]),
        timeout=TimeoutRule(
            minimum=random_.choice([0.1, 1.0]),
            maximum=random_.choice([2.0, 8.0]),
            shadow_share=random_.choice([0.02, 0.5]),
            seed=scenario.seed,
        ),
    )
    return replace(scenario, programs=programs)


def _with_response_factor(scenario: Scenario, random_: random.Random) -> Scenario:
    """Give half of the jobs with fixed factors another factor for responses, often 1."""
    if scenario.tail_factor is None or scenario.auto or random_.random() < 0.5:
        return scenario
    return replace(scenario, response_factor=random_.choice([1.0, 1.0, 1.25, 1.5]))


def _with_edit(scenario: Scenario, random_: random.Random) -> Scenario:
    """Add a user edit to a third of the jobs."""
    if random_.random() < 0.67:
        return scenario
    most_rounds = MOST_TRAJECTORIES // (scenario.prompts * scenario.responses)
    edit = draw_edit(random_, scenario.horizon, scenario.rounds, most_rounds, scenario.machines, MOST_MACHINES)
    return replace(scenario, edit=edit)


_LATER: dict[str, Callable[[Scenario, random.Random], Scenario]] = {
    "layouts": _with_layouts,
    "loans": _with_loans,
    "programs": _with_programs,
    "response-factor": _with_response_factor,
    "edits": _with_edit,
}


def plan_of(scenario: Scenario) -> FaultPlan:
    """Draw the faults of a seed's scenario."""
    site = scenario.site
    return draw_plan(scenario.seed, scenario.machines, site.replicas, scenario.horizon, workers=site.lendable)
