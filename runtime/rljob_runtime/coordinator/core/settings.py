"""Settings: the values that the coordinator takes from the spec, and its timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_api import RLJob
from rljob_api.rules_algorithm import MAX_RESPONSES_PER_ROUND
from rljob_api.spec import RLJobSpec
from rljob_api.spec_training import AUTO, Mode, Sampler
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.experience_buffer import BufferLimits
from rljob_runtime.scheduling.lending.policy import LoanOutcome, LoanRules
from rljob_runtime.scheduling.repack import RepackRules
from rljob_runtime.scheduling.round_plan import RoundRules, RoundShape
from rljob_runtime.scheduling.round_planner.planner import FIRST_RESPONSES
from rljob_runtime.scheduling.round_planner.plans import PLAIN, CandidatePlans, candidate_plans
from rljob_runtime.scheduling.round_planner.round_history import REACH, WINDOW
from rljob_runtime.scheduling.tail_batching import Factors, ceil_product

STREAM_TOKENS = 1 << 16
"""Loss tokens in a call: enough to fill rows on every rank, and few enough that other commands do not wait long. With a
measured speed, calls to a slow trainer are shorter."""


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


def rounds_kept(spec: RLJobSpec) -> int:
    """Return how many rounds the store keeps.

    A trainer may restart at any kept checkpoint or at the one before. Predictions use some past rounds.
    """
    checkpoints = spec.checkpoint.every_rounds * (spec.checkpoint.keep + 1)
    return max(spec.store.keep_rounds, checkpoints, REACH + WINDOW)


@dataclass(frozen=True)
class Settings:
    """Settings of one coordinator. Times are in seconds."""

    prompts_per_round: int
    responses_per_prompt: int
    max_response_tokens: int
    temperature: float
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
    sampler: Sampler = Sampler.FIFO
    """Asynchronous: which ready groups an update takes."""
    capacity: BufferLimits = field(default_factory=lambda: BufferLimits(0, 0, 0))
    """Asynchronous: bounds of the groups that may be open, in flight or ready."""
    max_staleness: int | None = None
    """Asynchronous: updates between a group's weights and its use; None for no bound."""
    repack: RepackRules | None = None
    """Asynchronous: when replicas are merged; None for never."""
    repack_seconds: float = 5.0
    tensor_parallel: int = 1
    """The spec's tensor parallel size."""
    tensor_parallel_sizes: tuple[int, ...] = (1,)
    """All sizes that the target may contain."""
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
    def max_untrainable_groups(self) -> int:
        """Asynchronous: consecutive untrainable groups after which the job fails."""
        return ceil_product(self.max_prompt_factor or 1.0, self.max_rounds_without_group * self.prompts_per_round)

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
        sampling = spec.algorithm.dynamic_sampling
        return cls(
            prompts_per_round=spec.algorithm.prompts_per_round,
            responses_per_prompt=spec.algorithm.responses_per_prompt,
            max_response_tokens=spec.data.max_response_tokens,
            temperature=spec.algorithm.temperature,
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
            sampler=spec.experience.sampler,
            capacity=BufferLimits.of(spec.algorithm.prompts_per_round, spec.experience.max_prompts),
            max_staleness=spec.experience.max_staleness,
            repack=RepackRules(spec.repack.kv_cache_threshold, spec.repack.max_batch) if spec.repack.enabled else None,
            repack_seconds=spec.repack.interval_seconds,
            tensor_parallel=spec.rollout.tensor_parallel_size,
            tensor_parallel_sizes=spec.rollout.tensor_parallel_sizes,
            slots=spec.rollout.slots,
            machines=range(spec.rollout.smallest, spec.rollout.largest + 1),
            choices=_choices(spec),
            max_prompt_factor=sampling.max_prompt_factor if sampling.enabled else None,
            lending=lending_rules(job),
        )


def _choices(spec: RLJobSpec) -> CandidatePlans:
    """Return the plans that the spec allows. `Auto` leaves them open. Several updates a round exclude streaming."""
    algorithm, tail, stream = spec.algorithm, spec.tail_batching, spec.stream_training

    def fits(factors: Factors) -> bool:
        prompts = ceil_product(factors.prompts, algorithm.prompts_per_round)
        return prompts * ceil_product(factors.responses, algorithm.responses_per_prompt) <= MAX_RESPONSES_PER_ROUND

    return candidate_plans(
        race=None if tail.enabled == AUTO else tail.enabled,
        prompt_factor=None if tail.prompt_factor == AUTO else tail.prompt_factor,
        response_factor=None if tail.response_factor == AUTO else tail.response_factor,
        stream=stream.enabled if stream.enabled != AUTO else None if algorithm.minibatches == 1 else False,
        fits=fits,
    )
