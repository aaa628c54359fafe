"""Why a response has no score: always our failure, never the response's."""

from __future__ import annotations

from enum import StrEnum

from rljob_api.constants import REWARDS_UNAVAILABLE


class Failure(StrEnum):
    """The reason, as counters and messages name it."""

    RAISED = "Raised"
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    NOT_FINITE = "NotFinite"
    OUT_OF_RANGE = "OutOfRange"
    NOT_STARTED = "NotStarted"
    NO_TESTS = "NoTests"
    SANDBOX_FAILED = "SandboxFailed"
    JUDGE_FAILED = "JudgeFailed"


BY_RESPONSE = frozenset({Failure.RAISED, Failure.NOT_FINITE, Failure.OUT_OF_RANGE, Failure.NO_TESTS})
"""Would come again with the same text: the rule has been computed. The others may be a busy or failing machine's."""


class RewardsNotReady(Exception):
    """What computes rewards cannot be started now: no process or memory is left, the container is not there. A later
    try may succeed. `reason` is the word for programs."""

    reason = REWARDS_UNAVAILABLE


class ScoreFailed(Exception):
    """A rule gave no score for a response; the sample is to be aborted."""

    def __init__(self, failure: Failure, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.rule = rule
