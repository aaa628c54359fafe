"""Reward failure: why a generated response has no reward, and how much of its tries that uses."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED


@dataclass(frozen=True)
class RewardFailure:
    """A failure of ours in place of a reward. The sample is aborted, and never scored 0."""

    reason: str = REWARD_FAILED
    """The part that failed, for programs: `RewardFailed` or `EnvironmentFailed`."""
    cause: str = ""
    """The failure, for people."""
    by_response: bool = False
    """True if the text of the response caused it: the same text would fail again."""
    counts: bool = True
    """True if it is one of the failures that a response may have."""

    @property
    def aborted(self) -> bool:
        """True if only another response can have a reward."""
        return self.reason == ENVIRONMENT_FAILED

    def failures(self, most: int) -> int:
        """Return how many of the `most` failures that a response may have this one is; one more leaves it no try."""
        return most + 1 if self.by_response else int(self.counts)
