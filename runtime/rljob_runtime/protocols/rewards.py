"""Rewards: score responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rljob_runtime.protocols.errors import PeerError
from rljob_runtime.protocols.reward_stats import RewardStats

Anchors = Mapping[str, Mapping[str, int]]
"""Milliseconds by rule and test, as the store holds them."""

Terms = Mapping[str, float]
"""Values by rule, without weights, in the order of `spec.rewards`."""


class Reward(float):
    """A reward: the weighted sum of all rules, with the value of each.

    It is a float wherever only the sum counts."""

    terms: Terms

    def __new__(cls, total: float, terms: Terms) -> Reward:
        made = super().__new__(cls, total)
        made.terms = terms
        return made

    def __reduce__(self) -> tuple[type[Reward], tuple[float, Terms]]:
        return Reward, (float(self), self.terms)


def terms_of(reward: float) -> Terms:
    """Return the value of each rule; empty for a plain number.

    >>> terms_of(Reward(2.5, {"right": 1.0, "short": 0.5}))["short"]
    0.5
    """
    return reward.terms if isinstance(reward, Reward) else {}


class RewardFailed(PeerError):
    """The reward failed (it raised, hung, or returned no finite number). The sample is aborted; it never counts as 0.

    `by_response`: whether the failure depends on the response's text. Then a replacement would bias the group towards
    other texts, so the whole group is filtered.
    """

    def __init__(self, message: str, by_response: bool = False) -> None:
        super().__init__(message)
        self.by_response = by_response


class ResponseAborted(RewardFailed):
    """A failure of ours ended the response. Another try cannot score it: it has to be generated again.

    `counts`: whether it is one of the failures that a response may have.
    """

    def __init__(self, message: str, counts: bool = True) -> None:
        super().__init__(message)
        self.counts = counts


class RewardsNotUsable(Exception):
    """A reward cannot be loaded. The message says which and why. Ends the job."""


class RewardsUnavailable(Exception):
    """A reward lacks something that may become available, so the job waits. `reason` is a word for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Rewards(Protocol):
    """Scores responses while replicas generate."""

    async def score(self, prompt: object, response_text: str, environment_reward: float | None = None) -> float:
        """Return the reward, a finite number, with the value of each rule if it is a `Reward`.

        `prompt`: the `rljob_runtime.data.Prompt`. `environment_reward`: what the episode's environment gave, for rules
        that count it. Raises `RewardFailed`.
        """
        ...

    def figures(self) -> RewardStats:
        """Return the totals so far."""
        ...

    def take_anchors(self) -> Anchors:
        """Return the learned timeouts that rose since the last call."""
        ...

    def restore_anchors(self, anchors: Anchors) -> None:
        """Replace the learned timeouts by these."""
        ...
