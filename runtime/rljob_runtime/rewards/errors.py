"""Reward errors: reasons why a response has no score.

The cause is always a failure of the system, never the response.
"""

from __future__ import annotations

from enum import StrEnum

from rljob_api.constants import REWARDS_UNAVAILABLE


class Failure(StrEnum):
    """Reason of a failure, as in metrics and messages."""

    RAISED = "Raised"
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    NOT_FINITE = "NotFinite"
    OUT_OF_RANGE = "OutOfRange"
    NOT_STARTED = "NotStarted"
    NO_TESTS = "NoTests"
    SANDBOX_FAILED = "SandboxFailed"
    JUDGE_FAILED = "JudgeFailed"
    NOT_GIVEN = "NotGiven"


BY_RESPONSE = frozenset({Failure.RAISED, Failure.NOT_FINITE, Failure.OUT_OF_RANGE, Failure.NO_TESTS, Failure.NOT_GIVEN})
"""Failures that would repeat for the same response, because the rule has been computed. The others may come from a busy
or failing machine."""


class RewardsNotReady(Exception):
    """The processes that compute rewards cannot start now.

    No process or memory is left, or the container is absent. A later try may succeed. `reason` is the machine-readable
    reason.
    """

    reason = REWARDS_UNAVAILABLE


class ScoreFailed(Exception):
    """A rule gave no score for a response.

    The sample must be aborted.
    """

    def __init__(self, failure: Failure, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.rule = rule
