"""Failing policies: whether a policy that fails by an unforeseen error is asked again.

Policies that only save time are optional: without their decision a round goes on as it is. A defect usually shows again
with the next question, so a policy that fails several times in a row is not asked any more.
"""

from __future__ import annotations

from collections import Counter

MOST_FAILURES = 3
"""Failures in a row after which a policy is not asked again: the third one is no coincidence of one round's state."""


class FailingPolicies:
    """The failures of each policy since it last decided.

    >>> policies = FailingPolicies()
    >>> [policies.failed("lending") for _ in range(MOST_FAILURES)]
    [True, True, False]
    """

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()

    def failed(self, policy: str) -> bool:
        """Record a failure. Returns whether the policy is asked again."""
        self._failures[policy] += 1
        return self.is_asked(policy)

    def decided(self, policy: str) -> None:
        """Record that a policy has decided."""
        del self._failures[policy]

    def is_asked(self, policy: str) -> bool:
        """Return whether a policy may be asked."""
        return self._failures[policy] < MOST_FAILURES
