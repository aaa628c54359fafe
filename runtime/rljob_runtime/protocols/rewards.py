"""What scores responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rljob_runtime.protocols.errors import PeerError
from rljob_runtime.protocols.reward_stats import RewardStats

Anchors = Mapping[str, Mapping[str, int]]
"""By rule and test, in milliseconds: as the store holds them."""


class RewardFailed(PeerError):
    """Our failure (raised, hung, returned no finite number), not the response's: the sample is aborted, never a
    zero. `by_response`: whether it depends on what the response says. Another one in its place would be chosen by that,
    so the group is given up."""

    def __init__(self, message: str, by_response: bool = False) -> None:
        super().__init__(message)
        self.by_response = by_response


class RewardsNotUsable(Exception):
    """A reward cannot be loaded: the message says which and why. Ends the job."""


class RewardsUnavailable(Exception):
    """What a reward needs is not there now; it may come, so the job waits. `reason` is one word for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Rewards(Protocol):
    """Scores responses asynchronously while rollouts go on."""

    async def score(self, prompt: object, response_text: str) -> float:
        """`prompt` is the `rljob_runtime.data.Prompt` drawn. A finite number, or `RewardFailed`."""
        ...

    def figures(self) -> RewardStats:
        """Totals so far."""
        ...

    def take_anchors(self) -> Anchors:
        """The anchors of adaptive timeouts that rose since the last call."""
        ...

    def restore_anchors(self, anchors: Anchors) -> None:
        """Go on with these, in place of those held."""
        ...
