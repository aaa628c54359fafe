"""Algorithm: the learning rule, its parts, and the optimizer.

A kind is a preset of parts: how rewards become advantages, the level of the probability ratio, what the clip bounds,
and the mean. A part that is absent is the kind's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import FunctionPath, Model
from rljob_api.spec.sampling import MinP, Sampling, TopK, TopP

Beta = Annotated[float, Field(ge=0, lt=1)]


class AlgorithmKind(StrEnum):
    """The learning rule: a preset of parts."""

    GRPO = "GRPO"
    DR_GRPO = "DrGRPO"
    RLOO = "RLOO"
    DAPO = "DAPO"
    GSPO = "GSPO"
    CISPO = "CISPO"


class AdvantageBaseline(StrEnum):
    """The value that a response's reward is compared with."""

    GROUP_MEAN = "GroupMean"
    LEAVE_ONE_OUT = "LeaveOneOut"


class ImportanceRatio(StrEnum):
    """The level of the probability ratio."""

    TOKEN = "Token"
    SEQUENCE = "Sequence"


class Clipping(StrEnum):
    """The bound that clipLow and clipHigh set."""

    OBJECTIVE = "Objective"
    WEIGHT = "Weight"


class LossAggregation(StrEnum):
    """Mean over which the loss is taken."""

    TOKEN_MEAN = "TokenMean"
    SEQUENCE_MEAN = "SequenceMean"
    SEQUENCE_SUM = "SequenceSum"
    FIXED_LENGTH = "FixedLength"


class KLPlacement(StrEnum):
    """The place at which the KL divergence from the initial model enters."""

    LOSS = "Loss"
    REWARD = "Reward"


class Overlong(Model):
    """Treatment of responses that reach the limit (DAPO).

    Both parts use data.maxResponseTokens.
    """

    mask: bool = False
    """Whether a response that was cut at the limit stays out of the loss. Its reward counts for its group."""
    penalty_tokens: Annotated[int | None, Field(ge=1, le=1_048_576)] = None
    """Tokens before the limit over which a penalty falls from 0 to -1. It is added to the reward before advantages are
    computed. Absent: no penalty."""


class DynamicSampling(Model):
    """DAPO: a group with equal rewards teaches nothing. It is dropped, and another prompt is drawn."""

    enabled: bool = False
    """Whether such groups are replaced. Off: they are trained on, with advantages of zero."""
    max_prompt_factor: float = Field(default=8.0, ge=1, le=100)
    """Most prompts drawn for a round, per prompt needed. Then the round trains on the groups that it has."""


class TruncatedImportanceSampling(Model):
    """Truncated importance sampling, in mode Asynchronous.

    Each token is weighted by the trainer's probability over the sampler's, up to a cap. clipLow and clipHigh then bound
    the change by the step's own updates.
    """

    cap: float = Field(default=2.0, ge=1, le=100)
    """Largest weight of a token."""


class ScheduleKind(StrEnum):
    """The schedule of the learning rate after warm-up."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class LearningRateSchedule(Model):
    """The learning rate after warm-up. It depends on the round only, so a resumed job continues it exactly."""

    kind: ScheduleKind = Field(default=ScheduleKind.CONSTANT)
    """Constant; Linear; Cosine: half a cosine wave."""
    decay_rounds: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Round in which the rate reaches its final value and stays there, e.g. the job's rounds. For Linear and Cosine,
    and required there: spec.rounds may grow while the job runs."""
    final_factor: float = Field(default=0.0, ge=0, le=1)
    """Final value, as a share of learningRate."""


class Algorithm(Model):
    """Group relative policy optimisation.

    The advantage of a response is relative to the other responses to its prompt.
    """

    kind: AlgorithmKind = Field(default=AlgorithmKind.DAPO)
    """GRPO, DrGRPO, RLOO, DAPO, GSPO or CISPO: presets of advantageBaseline, normalizeAdvantagesByStd, importanceRatio,
    clipping, clipLow, clipHigh and lossAggregation. DAPO's dynamicSampling and overlong are set by themselves."""
    prompts_per_round: int = Field(default=128, ge=1, le=65_536)
    """Prompts (groups) of one round."""
    responses_per_prompt: int = Field(default=8, ge=2, le=1024)
    """Responses to each prompt: the size of a group."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature of the rollouts; the trainer's probabilities use the same."""
    top_p: TopP = 1.0
    """Rollouts draw from the smallest set of the most probable tokens that has this probability. Below 1 the data is
    off-policy: the loss knows all tokens."""
    top_k: TopK = 0
    """Rollouts draw from this many most probable tokens. 0: from all. Above 0 the data is off-policy, as with topP."""
    min_p: MinP = 0.0
    """Rollouts draw from the tokens with at least this share of the probability of the most probable one. Above 0 the
    data is off-policy, as with topP."""
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """AdamW's step size after warm-up."""
    warmup_rounds: int = Field(default=0, ge=0, le=1_000_000)
    """Rounds over which the learning rate rises from zero."""
    learning_rate_schedule: LearningRateSchedule = LearningRateSchedule()
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """AdamW's decoupled weight decay."""
    betas: tuple[Beta, ...] = Field(default=(0.9, 0.999), min_length=2, max_length=2)
    """AdamW's two decay rates, each in [0, 1)."""
    adam_epsilon: float = Field(default=1e-8, gt=0, le=1)
    """AdamW's addend to the root of the second moment."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e6)
    """Largest gradient norm; a longer gradient is scaled down to it."""
    advantage: FunctionPath | None = None
    """Your own advantages: module:function in the images of trainer and rollout machines. Called with a group, it
    returns one number for each response. It takes the place of advantageBaseline and normalizeAdvantagesByStd."""
    loss: FunctionPath | None = None
    """Your own loss: module:function in the images of trainer and rollout machines. Called with (batch, config), it
    returns a LossOutput. It takes the place of importanceRatio and clipping; `config` has all settings."""
    advantage_baseline: AdvantageBaseline | None = None
    """GroupMean: the mean reward of the group. LeaveOneOut: the mean reward of the group's other responses. Absent: by
    kind."""
    normalize_advantages_by_std: bool | None = None
    """Whether a group's advantages are divided by the standard deviation of its rewards. Absent: by kind."""
    importance_ratio: ImportanceRatio | None = None
    """Token: each token has its own probability ratio. Sequence: all tokens of a response have the geometric mean of
    its ratios. Absent: by kind."""
    clipping: Clipping | None = None
    """Objective: PPO's minimum of the plain and the clipped objective; a token beyond the clip has no gradient. Weight:
    the clipped ratio is a constant weight of the log-probability; every token keeps its gradient. Absent: by kind."""
    clip_low: Annotated[float | None, Field(ge=0, lt=1)] = None
    """The probability ratio is clipped below at 1 - clipLow. Absent: by kind."""
    clip_high: Annotated[float | None, Field(ge=0, le=10)] = None
    """The probability ratio is clipped above at 1 + clipHigh. Absent: by kind."""
    loss_aggregation: LossAggregation | None = None
    """TokenMean: every response token of the round has the same weight. SequenceMean: every response has. SequenceSum:
    the sum over a response's tokens, and the mean over responses. FixedLength: SequenceSum over
    data.maxResponseTokens. Absent: by kind."""
    truncated_importance_sampling: TruncatedImportanceSampling = TruncatedImportanceSampling()
    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the KL divergence from the initial model. 0: none, and no second model in memory."""
    kl_placement: KLPlacement = Field(default=KLPlacement.LOSS)
    """Loss: the divergence is added to the loss. Reward: each token's log ratio to the initial model is subtracted from
    the reward, after the group's baseline."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy of the token distributions, which is subtracted from the loss."""
    overlong: Overlong = Overlong()
    dynamic_sampling: DynamicSampling = DynamicSampling()
    minibatches: int = Field(default=1, ge=1, le=1024)
    """Updates per round: the round's groups are split into this many parts."""
    max_tokens_per_microbatch: int = Field(default=16_384, ge=16, le=16_777_216)
    """Tokens that pass through the model together in training. It bounds memory, and changes no result."""

    @property
    def sampling(self) -> Sampling:
        """Return how rollouts draw tokens, complete."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)
