"""Round samples: what a round knows of each response, and the race of the prompts of one source.

`round` holds the rules by which they change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rljob_runtime.protocols.trajectory import Lease, PromptKey
from rljob_runtime.scheduling.round_plan import REWARD_FAILED


class SampleState(StrEnum):
    """State of a response."""

    WAITING = "waiting"
    """No replica generates it."""
    RUNNING = "running"
    """A replica holds its lease."""
    GENERATED = "generated"
    """Complete, with a place in its group; its reward is expected."""
    SCORED = "scored"
    """Complete, with its reward."""
    LOST = "lost"
    """All places of its group, or of the round, are taken by others."""
    DROPPED = "dropped"
    """Its group was filtered."""


@dataclass
class Sample:
    """A response of a round."""

    state: SampleState = SampleState.WAITING
    lease: Lease | None = None
    attempt: int = 0
    failures: int = 0
    failure: str = REWARD_FAILED
    """The reason of the newest failure."""
    generated: bool = False
    """Complete, also if it lost afterwards."""
    reward: float | None = None

    @property
    def racing_state(self) -> SampleState:
        """The state that it has while its prompt races."""
        if not self.generated:
            return SampleState.WAITING
        return SampleState.GENERATED if self.reward is None else SampleState.SCORED

    def awaits(self, attempt: int) -> bool:
        """Check whether this attempt's reward is expected, or would be if the response raced again."""
        alive = self.state in (SampleState.GENERATED, SampleState.LOST)
        return alive and self.generated and self.reward is None and self.attempt == attempt


@dataclass
class Race:
    """The prompts of one source: `groups` places for `prompts` launched ones. `most`: prompts that may be drawn."""

    prompts: int
    groups: int
    most: int
    drawn: list[PromptKey] = field(default_factory=list)
    full: set[PromptKey] = field(default_factory=set)
    """Prompts with a place in the round: all responses of their groups are generated."""
    lost: set[PromptKey] = field(default_factory=set)
    """Prompts that lost to the full ones."""
    filtered: int = 0
    equal: int = 0
    """Filtered prompts whose rewards were equal."""

    @property
    def is_won(self) -> bool:
        """Whether all places are taken."""
        return len(self.full) >= self.groups

    def missing(self, from_scratch: bool) -> int:
        """Return the number of prompts to draw now; `from_scratch`: the round has no group and expects none."""
        if self.is_won:
            return 0
        missing = self.prompts if from_scratch else self.prompts - (len(self.drawn) - self.equal)
        return max(0, min(missing, self.most - len(self.drawn)))
