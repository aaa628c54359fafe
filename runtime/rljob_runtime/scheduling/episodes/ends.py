"""Ends: how an attempt of an episode ended, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.scheduling.episodes.limits import Limit


class EndState(StrEnum):
    """The end of an attempt."""

    COMPLETED = "completed"
    """The environment ended it."""
    TRUNCATED = "truncated"
    """It reached a limit. Its turns are trained on with its reward, as those of a completed one."""
    ABORTED = "aborted"
    """A failure of ours ended it. It has no reward: a zero would teach the policy that its answers were wrong."""


class AbortCause(StrEnum):
    """The part that failed."""

    ENVIRONMENT = "environment"
    TOOL_SERVER = "tool server"
    GATEWAY = "gateway"
    ENGINE = "engine"
    WEIGHTS = "weights"
    """No engine holds the version that `versions: Single` needs."""
    NO_TURN = "no turn"
    """The agent ended without a call of the model, so there is nothing to train on."""
    RUNNER_LEFT = "runner left"
    """Its runner was told to end, and handed it back: nothing has failed."""
    NOT_NEEDED = "not needed"
    """Its response was dropped, or begins again: nothing has failed."""


NO_FAILURES = frozenset({AbortCause.RUNNER_LEFT, AbortCause.NOT_NEEDED})
MOST_HAND_BACKS = 8
"""Times that runners may hand back the episodes of a response. More are failures: runners that are started and ended
without an end would else repeat it for ever."""


def counts_as_failure(end: EpisodeEnd, hand_backs: int) -> bool:
    """Return whether an aborted attempt is a failure of its response. `hand_backs`: those of the response so far.

    >>> left = EpisodeEnd(EndState.ABORTED, cause=AbortCause.RUNNER_LEFT)
    >>> [counts_as_failure(left, times) for times in (1, MOST_HAND_BACKS, MOST_HAND_BACKS + 1)]
    [False, False, True]
    """
    return end.cause is not AbortCause.RUNNER_LEFT or hand_backs > MOST_HAND_BACKS


@dataclass(frozen=True)
class EpisodeEnd:
    """The end of an attempt. `limit` of a truncated one, `cause` of an aborted one, `detail` of both."""

    state: EndState
    limit: Limit | None = None
    cause: AbortCause | None = None
    detail: str = ""

    @property
    def reason(self) -> str:
        """Return the reason; empty for a completed attempt.

        >>> EpisodeEnd(EndState.TRUNCATED, Limit.SECONDS, detail="the deadline ended the agent").reason
        'the limit of seconds was reached: the deadline ended the agent'
        """
        why = f"the limit of {self.limit} was reached" if self.limit is not None else self.cause or ""
        return ": ".join(part for part in (why, self.detail) if part)
