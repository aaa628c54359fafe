"""Algorithm rules: those of `spec.algorithm` with other fields."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.errors import ABSENT, FieldError
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import KLPlacement, ScheduleKind

Errors = Iterator[FieldError]

MAX_RESPONSES_PER_ROUND = 1 << 20


def check_algorithm(spec: RLJobSpec) -> Errors:
    """Yield the mistakes of the algorithm's fields."""
    algorithm = spec.algorithm
    responses = algorithm.prompts_per_round * algorithm.responses_per_prompt
    if responses > MAX_RESPONSES_PER_ROUND:
        yield FieldError(
            "spec.algorithm.promptsPerRound",
            algorithm.prompts_per_round,
            f"must be at most {MAX_RESPONSES_PER_ROUND // algorithm.responses_per_prompt}: a round holds at most "
            f"{MAX_RESPONSES_PER_ROUND} responses",
        )
    if algorithm.prompts_per_round % algorithm.minibatches:
        yield FieldError(
            "spec.algorithm.minibatches",
            algorithm.minibatches,
            f"must divide promptsPerRound ({algorithm.prompts_per_round})",
        )
    longest = spec.data.max_prompt_tokens + spec.data.max_response_tokens
    if algorithm.max_tokens_per_microbatch < longest:
        yield FieldError(
            "spec.algorithm.maxTokensPerMicrobatch",
            algorithm.max_tokens_per_microbatch,
            f"must hold the longest sequence: at least {longest} (maxPromptTokens + maxResponseTokens)",
        )
    if algorithm.warmup_rounds > spec.rounds:
        yield FieldError(
            "spec.algorithm.warmupRounds", algorithm.warmup_rounds, f"must be at most rounds ({spec.rounds})"
        )
    yield from _schedule(spec)
    for field, value in (
        ("advantageBaseline", algorithm.advantage_baseline),
        ("normalizeAdvantagesByStd", algorithm.normalize_advantages_by_std),
    ):
        if algorithm.advantage is not None and value is not None:
            yield FieldError(f"spec.algorithm.{field}", value, "must be left out: advantage takes its place")
    longest, penalty = spec.data.max_response_tokens, algorithm.overlong.penalty_tokens
    if penalty is not None and penalty > longest:
        advice = f"must be at most data.maxResponseTokens ({longest}): the penalty grows over the tokens before it"
        yield FieldError("spec.algorithm.overlong.penaltyTokens", penalty, advice)
    if algorithm.kl_placement is KLPlacement.REWARD and algorithm.kl_coefficient == 0:
        advice = "needs klCoefficient above 0; or leave it out"
        yield FieldError("spec.algorithm.klPlacement", algorithm.kl_placement.value, advice)


def _schedule(spec: RLJobSpec) -> Errors:
    schedule, warmup = spec.algorithm.learning_rate_schedule, spec.algorithm.warmup_rounds
    path, decay = "spec.algorithm.learningRateSchedule.decayRounds", schedule.decay_rounds
    if schedule.kind is ScheduleKind.CONSTANT:
        if decay is not None:
            yield FieldError(path, decay, "is for kinds Linear and Cosine only; leave it out")
    elif decay is None:
        advice = f"is required for kind {schedule.kind}: the round in which the decay ends, e.g. {spec.rounds}"
        yield FieldError(path, ABSENT, advice)
    elif decay <= warmup:
        yield FieldError(path, decay, f"must be more than warmupRounds ({warmup})")
