"""Policy failures: an unforeseen error of an optional policy becomes a warning, and the job goes on.

Optional policies only save time. An error in one is a defect, but it must not end a coordinator: its successor would
meet the same error. The decision is then the one without the policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from rljob_api.status import StatusWarning
from rljob_runtime.scheduling.fault_detection.failing_policies import FailingPolicies

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBLEM = "PolicyFailed"


class OptionalPolicy(StrEnum):
    """A policy without which the job only takes longer."""

    LOANS = "loans of rollout machines"
    SWITCHES = "layout switches"
    PLANS = "round plans"
    REPACK = "repack"
    PROFILES = "idle-time profiles"


def attempt(work: Callable[[], T]) -> T | Exception:
    """Return the result of `work`, or its error. It may run in a thread."""
    try:
        return work()
    except Exception as error:  # reported by `PolicyFailures.failed`
        return error


class PolicyFailures:
    """The optional policies that fail, for the status and the log. `report` sets or removes a warning by its reason.

    All methods must be called in the event loop's thread."""

    def __init__(self, report: Callable[[str, StatusWarning | None], None]) -> None:
        self._report = report
        self._policies = FailingPolicies()
        self._messages: dict[OptionalPolicy, str] = {}

    def is_asked(self, policy: OptionalPolicy) -> bool:
        """Return whether a policy may be asked."""
        return self._policies.is_asked(policy)

    def failed(self, policy: OptionalPolicy, error: Exception) -> None:
        """Log the error, and show it in the status until the policy decides."""
        again = self._policies.failed(policy)
        log.error("the policy of %s failed", policy, exc_info=error)
        later = "It is asked again later." if again else "It is not asked again before the coordinator restarts."
        self._messages[policy] = f"the policy of {policy} failed: {type(error).__name__}: {error}. {later}"
        self._tell()

    def decided(self, policy: OptionalPolicy) -> None:
        """Remove the warning about a policy that has decided."""
        self._policies.decided(policy)
        if self._messages.pop(policy, None) is not None:
            self._tell()

    def _tell(self) -> None:
        if not self._messages:
            self._report(PROBLEM, None)
            return
        told = [*self._messages.values(), "The job goes on without its decision. Report the traceback in the log"]
        self._report(PROBLEM, StatusWarning(reason=PROBLEM, message=" ".join(told)[:2048]))
