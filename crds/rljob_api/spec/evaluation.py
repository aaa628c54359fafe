"""Evaluation: prompts that are never trained on, and how the job's weights answer them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import DnsLabel, Model
from rljob_api.spec.sampling import Sampling
from rljob_api.spec.training import Prompts


class EvaluationSampling(Sampling):
    """Sampling of an evaluation's responses. An absent field has the value of training."""

    max_response_tokens: Annotated[int | None, Field(ge=1, le=1_048_576)] = None
    """Longest response, in tokens. Absent: data.maxResponseTokens, which is also the most."""


class EvaluationPrompts(Prompts):
    """The source of an evaluation's prompts: exactly one of the fields."""

    held_out: bool = False
    """Whether they are the records that `data.heldOut` keeps from training. Those of several sources have the sources'
    shares."""
    source: DnsLabel | None = None
    """Name of the only source in data.sources whose held-out records they are. Absent: all sources."""

    @property
    def own(self) -> Prompts | None:
        """The evaluation's own source; None for held-out records."""
        return None if self.held_out else self


class Evaluation(Model):
    """One evaluation. Its prompts are never trained on."""

    name: DnsLabel
    """Name in metrics, logs and files; unique in the list."""
    prompts: EvaluationPrompts
    """Source of its prompts."""
    rewards: Annotated[tuple[DnsLabel, ...] | None, Field(min_length=1, max_length=16)] = None
    """Names of the rules in spec.rewards that score its responses. Absent: all of them."""
    every_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Rounds between two evaluations. There is one before the first round and one after the last round too."""
    responses_per_prompt: int = Field(default=1, ge=1, le=1024)
    """Responses to each prompt: k of avg@k, and the largest k of pass@k."""
    max_prompts: int = Field(default=256, ge=1, le=65_536)
    """Most prompts. A larger source is sampled with `data.seed`: the same prompts each time."""
    pass_reward: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Reward from which a response passes, for pass@k."""
    sampling: EvaluationSampling = EvaluationSampling()
    """Sampling of the responses."""
