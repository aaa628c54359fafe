"""Settings: the values that the coordinator takes from the spec, and its timeouts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from rljob_api import RLJob
from rljob_api.rules.algorithm import MAX_RESPONSES_PER_ROUND
from rljob_api.spec import RLJobSpec
from rljob_api.spec.environments import Environment, EnvironmentKind, EnvironmentState, EpisodeLimits
from rljob_api.spec.evaluation import Evaluation
from rljob_api.spec.resources import KeepBest
from rljob_api.spec.training import AUTO, Mode, Sampler
from rljob_runtime.protocols.trajectory import Sampling
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.asynchronous.experience_buffer import BufferLimits
from rljob_runtime.scheduling.asynchronous.repack import RepackRules
from rljob_runtime.scheduling.asynchronous.repack_gain import RepackPlan
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.scheduling.lending.policy import LoanOutcome, LoanRules
from rljob_runtime.scheduling.round_plan import RoundRules, RoundShape
from rljob_runtime.scheduling.round_planner.planner import FIRST_RESPONSES
from rljob_runtime.scheduling.round_planner.plans import PLAIN, CandidatePlans, candidate_plans
from rljob_runtime.scheduling.round_planner.round_history import REACH, WINDOW
from rljob_runtime.scheduling.shares import ONE_SOURCE, Shares, shares_of
from rljob_runtime.scheduling.tail_batching import Factors, ceil_product

STREAM_TOKENS = 1 << 16
"""Loss tokens in a call: enough to fill rows on every rank, and few enough that other commands do not wait long. With a
measured speed, calls to a slow trainer are shorter."""

ENGINE_FIELDS = ("accelerator", "acceleratorsPerMachine", "slotsPerMachine", "engine", "engineOptions")
GRADIENT_FIELDS = ("trainer", "algorithm", "relay")


def lending_rules(job: RLJob) -> LoanRules | LoanOutcome | None:
    """Return when machines of this job are loaned to training, or why they never are; None if no round streams."""
    spec = job.spec
    stream, rollout = spec.stream_training, spec.rollout
    if not any(plan.stream for plan in _choices(spec).plans):
        return None
    if not stream.max_completed:
        return LoanOutcome.SWITCHED_OFF
    if rollout.largest < 2:
        return LoanOutcome.ONE_MACHINE
    if spec.algorithm.kl_coefficient > 0:
        return LoanOutcome.NEEDS_REFERENCE_MODEL
    return LoanRules(stream.min_completed, stream.max_completed)


def switch_rules(spec: RLJobSpec) -> SwitchRules | None:
    """Return when machines of this job switch their tensor parallel size inside a round; None for never."""
    adaptive = spec.adaptive_tensor_parallel
    if not spec.switch_sizes:
        return None
    # Keys and values of episodes are not moved.
    state = State.RECOMPUTE if spec.environments else State(adaptive.state.value)
    sizes = frozenset(spec.switch_sizes)
    return SwitchRules(sizes, adaptive.min_gain, adaptive.max_switches, state)


def episode_rules(spec: RLJobSpec) -> dict[str, EpisodeRules]:
    """Return what bounds the episodes of each environment, in the order of the spec; empty without environments."""
    limits, data = spec.episode or EpisodeLimits(), spec.data
    # A round has one version, and no replica loads another one during it.
    versions = Versions.MIXED if spec.mixes_versions else Versions.SINGLE
    tokens = limits.max_tokens or data.max_prompt_tokens + data.max_response_tokens
    return {
        one.name: EpisodeRules(
            Limits(
                turns=min(one.max_turns, limits.max_turns or one.max_turns),
                tokens=tokens,
                seconds=one.timeout_seconds,
                forks=limits.max_forks,
            ),
            versions,
            recovery_of(one),
            one.overtime_seconds,
        )
        for one in spec.environments
    }


def recovery_of(environment: Environment) -> Recovery:
    """Return how another runner goes on with an episode.

    Where the loop is ours, it knows what was done. Programs of the other kinds have that in their memory."""
    if environment.kind is not EnvironmentKind.TOOLS:
        return Recovery.RERUN
    return Recovery.NEXT_TURN if environment.state is EnvironmentState.STATELESS else Recovery.REPLAY


def repack_rules(spec: RLJobSpec) -> RepackRules | None:
    """Return when replicas are merged; None for never.

    With mixed versions a replica loads newer weights and draws prompts beside its last episodes: none needs a release.
    """
    if not spec.repack.enabled or any(one.versions is Versions.MIXED for one in episode_rules(spec).values()):
        return None
    return RepackRules(spec.repack.kv_cache_threshold, spec.repack.max_batch)


def sampling_of(spec: RLJobSpec) -> Sampling:
    """Return how the rollouts of training draw tokens, without seed and stop tokens."""
    data, chosen = spec.data, spec.algorithm.sampling.model_dump()
    return Sampling(max_tokens=data.max_response_tokens, stop_strings=data.stop_strings, **chosen)


def rounds_kept(spec: RLJobSpec) -> int:
    """Return how many rounds the store keeps.

    A trainer may restart at any kept checkpoint or at the one before. Predictions use some past rounds.
    """
    checkpoints = spec.checkpoint.every_rounds * (spec.checkpoint.keep + 1)
    return max(spec.store.keep_rounds, checkpoints, REACH + WINDOW)


def _digest(evaluation: Evaluation, sampling: Sampling, spec: RLJobSpec) -> str:
    parts = (
        evaluation.prompts.to_dict(),
        evaluation.rewards,
        [reward.to_dict() for reward in spec.rewards],
        spec.data.to_dict(),
        asdict(sampling),
        *_turns(spec),
    )
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _turns(spec: RLJobSpec) -> list[object]:
    """Return what the turns of a response depend on; nothing without environments."""
    if not spec.environments:
        return []
    return [
        [one.model_dump(mode="json", exclude=_beside_turns(one)) for one in spec.environments],
        # An evaluation has one version, whatever training has.
        spec.episode and {name: value for name, value in spec.episode.to_dict().items() if name != "versions"},
    ]


def _beside_turns(environment: Environment) -> set[str]:
    """Return the fields of an environment on which no turn depends.

    Without `tool_seconds` it is among them, so that evaluations which began before this field go on."""
    beside = {"runners", "episodes_per_runner", "reward_seconds"}
    return beside | ({"tool_seconds"} if environment.tool_seconds is None else set[str]())


def engines_digest(spec: RLJobSpec) -> str:
    """Return a digest of those fields that the engines' speed depends on and that may change during a suspension."""
    return _short_digest(_engine_parts(spec))


def gradients_digest(spec: RLJobSpec) -> str:
    """Return a digest of those fields that the seconds of gradients and of their transfers depend on."""
    fields = spec.to_dict()
    return _short_digest([*_engine_parts(spec), *(fields.get(name) for name in GRADIENT_FIELDS)])


def _engine_parts(spec: RLJobSpec) -> list[object]:
    rollout = spec.rollout.to_dict()
    return [[rollout.get(name) for name in ENGINE_FIELDS], spec.to_dict().get("accelerator")]


def _short_digest(parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of one evaluation. `sampling` has no seed: each response has its own."""

    name: str
    every_rounds: int
    responses_per_prompt: int
    sampling: Sampling
    pass_reward: float = 1.0
    digest: str = ""
    """Of everything that a response and its reward depend on. Responses under another digest do not count."""

    @classmethod
    def of(cls, evaluation: Evaluation, spec: RLJobSpec) -> EvaluationSettings:
        """Return the settings of an evaluation. Absent ones are those of training."""
        own = evaluation.sampling
        training, drawn = sampling_of(spec), own.over(spec.algorithm.sampling).model_dump()
        sampling = replace(training, max_tokens=own.max_response_tokens or training.max_tokens, **drawn)
        return cls(
            evaluation.name,
            evaluation.every_rounds,
            evaluation.responses_per_prompt,
            sampling,
            evaluation.pass_reward,
            _digest(evaluation, sampling, spec),
        )


@dataclass(frozen=True)
class Settings:
    """Settings of one coordinator. Times are in seconds."""

    prompts_per_round: int
    responses_per_prompt: int
    max_response_tokens: int
    sampling: Sampling
    """How tokens of rollouts are drawn; a launch adds its seed and the stop tokens."""
    seed: int
    trainer_replicas: int
    workers_per_trainer: float
    """Loaned machines that compute as fast as the trainer, if an accelerator is as fast as a rank."""
    checkpoint_every: int
    keep_rounds: int
    """Rounds whose rows the store keeps."""
    max_rounds_without_group: int
    heartbeat: float
    rebuild_timeout: float

    mode: Mode = Mode.ON_POLICY
    shares: Shares = ONE_SOURCE
    """The prompt sources and their shares."""
    sampler: Sampler = Sampler.FIFO
    """Asynchronous: which ready groups an update takes."""
    capacity: BufferLimits = field(default_factory=lambda: BufferLimits(0, 0, 0))
    """Asynchronous: bounds of the groups that may be open, in flight or ready."""
    max_staleness: int | None = None
    """Asynchronous: updates between a group's weights and its use; None for no bound."""
    repack: RepackRules | None = None
    """Asynchronous: when replicas are merged; None for never."""
    repack_plan: RepackPlan | None = None
    """Asynchronous: which merges are made. None: those that save time. No spec sets it."""
    repack_seconds: float = 5.0
    tensor_parallel: int = 1
    """The spec's tensor parallel size."""
    tensor_parallel_sizes: tuple[int, ...] = (1,)
    """All sizes that the target may contain."""
    switch_rules: SwitchRules | None = None
    """When machines switch their size inside a round; None for never."""
    engines: str = ""
    """A digest of what the engines' seconds depend on."""
    gradients: str = ""
    """A digest of what the seconds of gradients, and of their transfers, depend on."""
    slots: int = 1
    """Accelerators of a machine, or the threads that stand in for them."""
    machines: range = range(0)
    """Numbers of machines that the operator may choose. OnPolicy: predictions for them are reported."""
    choices: CandidatePlans = PLAIN
    """The plans that rounds may use."""
    first_responses: int = FIRST_RESPONSES
    """Responses that must have ended before rounds are predicted."""
    max_prompt_factor: float | None = None
    """Dynamic sampling draws at most this multiple of a round's prompts; None: no dynamic sampling."""
    stream_tokens: int = STREAM_TOKENS
    """Most loss tokens in one call of a stream, but one group at least."""
    fetch_as_they_end: bool = True
    """Whether a stream sends groups as they become complete. False: after generation, as in the comparison of the
    paper's Table 4; no spec sets it."""
    lending: LoanRules | LoanOutcome | None = None
    """When rollout machines are loaned in a plan that streams, or why they never are. None: no plan streams."""
    evaluations: tuple[EvaluationSettings, ...] = ()
    """The evaluations of the job."""
    environments: Mapping[str, EpisodeRules] = field(default_factory=dict)
    """What bounds the episodes of each environment, in the order of the spec. Empty: a response is one turn."""
    keep_best: KeepBest | None = None
    """Which evaluation decides which model is the best; None: no model is kept."""
    join_tries: int = 3
    """Tries to find or make the actors of a machine before it is suspected as `NotJoined`."""
    poll_wait: float = 0.5
    """Time for which a poll waits at the replica for its first token."""
    stall: float = 120.0
    """A replica that has work but makes no progress for this long is marked lost."""
    again_within: float = 600.0
    """A machine that fails again within this time after a restart in place keeps failing."""
    flush: float = 1.0
    """Time between two writes of new tokens to the store."""
    join_patience: float = 60.0
    """Time for which a start waits for the last machines of the target."""
    reward_failures: int = 2
    """Times that a response is regenerated because its reward failed."""
    back_off: Backoff = field(default_factory=lambda: Backoff(initial=0.5, maximum=15.0))
    """Delays between tries to reach a peer."""
    rewards_back_off: Backoff = field(default_factory=lambda: Backoff(initial=5.0, maximum=300.0))
    """Delays between tries to start rewards that lack something."""

    @property
    def drops_equal(self) -> bool:
        """Whether groups of equal rewards are not trained on."""
        return self.max_prompt_factor is not None

    @property
    def longest_response(self) -> int:
        """Most tokens of a response after its prompt: those of an episode are of all its turns and tools."""
        lengths = (one.limits.tokens or self.max_response_tokens for one in self.environments.values())
        return max(lengths, default=self.max_response_tokens)

    @property
    def mixes_versions(self) -> bool:
        """Asynchronous: whether newer weights may generate later turns of an episode."""
        return any(one.versions is Versions.MIXED for one in self.environments.values())

    @property
    def max_untrainable_groups(self) -> int:
        """Asynchronous: consecutive untrainable groups after which the job fails."""
        return ceil_product(self.max_prompt_factor or 1.0, self.max_rounds_without_group * self.prompts_per_round)

    def replaces(self, source: str, filtered: int) -> bool:
        """Asynchronous: whether a filtered group is replaced from its source. See `Shares.replaces`."""
        return self.shares.replaces(source, filtered, self.prompts_per_round, self.max_prompt_factor or 1.0)

    def rules(self, shape: RoundShape) -> RoundRules:
        """Return when a round of this shape filters groups, and how many prompts it may draw."""
        most = self.max_rounds_without_group * shape.prompts
        if self.max_prompt_factor is None:
            return RoundRules(self.reward_failures, drop_equal=False, max_prompts=most)
        return RoundRules(
            self.reward_failures, drop_equal=True, max_prompts=ceil_product(self.max_prompt_factor, shape.groups)
        )

    @classmethod
    def of(cls, job: RLJob) -> Settings:
        """Return the settings of a job."""
        spec = job.spec
        dynamic = spec.algorithm.dynamic_sampling
        return cls(
            prompts_per_round=spec.algorithm.prompts_per_round,
            responses_per_prompt=spec.algorithm.responses_per_prompt,
            max_response_tokens=spec.data.max_response_tokens,
            sampling=sampling_of(spec),
            seed=spec.data.seed,
            trainer_replicas=spec.trainer.replicas,
            workers_per_trainer=spec.trainer.ranks / max(1, spec.rollout.accelerators_per_machine),
            checkpoint_every=spec.checkpoint.every_rounds,
            keep_rounds=rounds_kept(spec),
            max_rounds_without_group=spec.failure_policy.max_rounds_without_group,
            again_within=spec.failure_policy.restart_window_seconds,
            heartbeat=spec.relay.heartbeat_seconds,
            rebuild_timeout=spec.relay.rebuild_timeout_seconds,
            mode=spec.mode,
            shares=shares_of(spec.data),
            sampler=spec.experience.sampler,
            capacity=BufferLimits.of(spec.algorithm.prompts_per_round, spec.experience.max_prompts),
            max_staleness=spec.experience.max_staleness,
            repack=repack_rules(spec),
            repack_seconds=spec.repack.interval_seconds,
            engines=engines_digest(spec),
            gradients=gradients_digest(spec),
            tensor_parallel=spec.rollout.tensor_parallel_size,
            tensor_parallel_sizes=spec.rollout.tensor_parallel_sizes,
            switch_rules=switch_rules(spec),
            slots=spec.rollout.slots,
            machines=range(spec.rollout.smallest, spec.rollout.largest + 1),
            choices=_choices(spec),
            max_prompt_factor=dynamic.max_prompt_factor if dynamic.enabled else None,
            lending=lending_rules(job),
            evaluations=tuple(EvaluationSettings.of(one, spec) for one in spec.evaluation),
            environments=episode_rules(spec),
            keep_best=spec.checkpoint.keep_best,
        )


def _choices(spec: RLJobSpec) -> CandidatePlans:
    """Return the plans that the spec allows. `Auto` leaves them open. Several updates a round exclude streaming."""
    algorithm, tail, stream = spec.algorithm, spec.tail_batching, spec.stream_training
    may_stream = algorithm.minibatches == 1

    def fits(factors: Factors) -> bool:
        prompts = ceil_product(factors.prompts, algorithm.prompts_per_round)
        return prompts * ceil_product(factors.responses, algorithm.responses_per_prompt) <= MAX_RESPONSES_PER_ROUND

    return candidate_plans(
        race=None if tail.enabled == AUTO else tail.enabled,
        prompt_factor=None if tail.prompt_factor == AUTO else tail.prompt_factor,
        response_factor=None if tail.response_factor == AUTO else tail.response_factor,
        stream=stream.enabled if stream.enabled != AUTO else None if may_stream else False,
        fits=fits,
    )
