"""Round plan: what a round is given, what the store keeps of it, and how it ends. The state machine is `round`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey


class PromptOutcome(StrEnum):
    """Outcome of a drawn prompt."""

    TRAINED = "trained"
    FILTERED = "filtered"
    REQUEUED = "requeued"


REWARD_FAILED = "RewardFailed"
"""Reason of a group that was filtered because a reward kept failing: our failure, not the response's."""
ENVIRONMENT_FAILED = "EnvironmentFailed"
"""Reason of a group that was filtered because attempts of an episode kept being aborted: environment, tools or gateway
failed, not the policy."""
EQUAL_REWARDS = "EqualRewards"
"""Reason of a group that was filtered because its rewards are equal: no training signal (DAPO, dynamic sampling)."""
RACE_LOST = "RaceLost"
"""Reason of a response whose group was full, and of a prompt that was requeued because the round was full."""


@dataclass(frozen=True)
class SourceShape:
    """What a round launches and keeps of one prompt source: `prompts` race for `groups` places."""

    name: str
    prompts: int
    groups: int


@dataclass(frozen=True)
class RoundShape:
    """What a round launches and keeps: `prompts` × `responses` race for `groups` × `group_size` places.

    Plain and long rounds launch exactly what they keep. `sources`: the parts of named sources, whose prompts race among
    themselves; empty for a job without."""

    kind: RoundKind
    prompts: int
    responses: int
    groups: int
    group_size: int
    sources: tuple[SourceShape, ...] = ()

    def __post_init__(self) -> None:
        if not (1 <= self.groups <= self.prompts and 1 <= self.group_size <= self.responses):
            raise ValueError(f"a round cannot keep more than it launches: {self}")
        sums = sum(one.prompts for one in self.sources), sum(one.groups for one in self.sources)
        if self.sources and sums != (self.prompts, self.groups):
            raise ValueError(f"the sources of a round add up to it: {self}")

    @property
    def races(self) -> tuple[SourceShape, ...]:
        """The races of a round: one for each source."""
        return self.sources or (SourceShape("", self.prompts, self.groups),)


@dataclass(frozen=True)
class RoundRules:
    """When a group is filtered.

    `max_failures`: how often one response is generated again after a reward failure. `drop_equal`: whether groups of
    equal rewards are filtered and replaced. `max_prompts`: the most prompts that a round draws, replacements included;
    0 for those of its shape."""

    max_failures: int = 2
    drop_equal: bool = False
    max_prompts: int = 0


@dataclass(frozen=True)
class RoundPlan:
    """The plan of a round. `version`: the weights that generate it. `prompts`: all prompts drawn so far, in order."""

    step: int
    version: int
    shape: RoundShape
    prompts: tuple[PromptKey, ...]
    rules: RoundRules = RoundRules()

    def trajectories(self) -> tuple[TrajectoryKey, ...]:
        """Return all responses, prompt by prompt."""
        return tuple(key for prompt in self.prompts for key in self.responses_of(prompt))

    def responses_of(self, prompt: PromptKey) -> tuple[TrajectoryKey, ...]:
        """Return the responses launched for a prompt."""
        return tuple(TrajectoryKey(prompt, sample) for sample in range(self.shape.responses))


@dataclass(frozen=True)
class Launch:
    """An instruction to generate a response on the lease's replica; older leases are void."""

    key: TrajectoryKey
    lease: Lease


@dataclass(frozen=True)
class RestoredSample:
    """The store's record of a response of an open round."""

    attempt: int
    failures: int = 0
    generated: bool = False
    reward: float | None = None
    failure: str = REWARD_FAILED
    """The reason of the newest failure."""


@dataclass(frozen=True)
class RoundOutcome:
    """The end of a round.

    `groups`: prompts to train on, in draw order; `kept`: their responses. `reasons`: why the other prompts are filtered
    or requeued."""

    groups: tuple[PromptKey, ...]
    outcomes: dict[PromptKey, PromptOutcome] = field(default_factory=dict)
    reasons: dict[PromptKey, str] = field(default_factory=dict)
    kept: tuple[TrajectoryKey, ...] = ()

    def with_outcome(self, outcome: PromptOutcome) -> tuple[PromptKey, ...]:
        """Return the prompts of this outcome, in draw order."""
        return tuple(prompt for prompt, its in self.outcomes.items() if its is outcome)
