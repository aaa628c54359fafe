"""Layout refusals: decides when a machine whose engines do not start counts as unable."""

from __future__ import annotations

from dataclasses import dataclass

MIN_REFUSALS = 3
"""Consecutive refusals, each with new processes, before a machine counts as unable."""


@dataclass(frozen=True)
class LayoutRefusals:
    """Consecutive refusals of a machine's usual layout.

    `first` and `last` are times in seconds; `reason` is that of the last refusal.
    """

    count: int
    first: float
    last: float
    reason: str

    def unable(self, patience: float) -> bool:
        """Return whether the machine has refused often enough, over at least `patience` seconds.

        >>> LayoutRefusals(3, first=0.0, last=60.0, reason="no memory").unable(60.0)
        True
        """
        return self.count >= MIN_REFUSALS and self.last - self.first >= patience


def refused_again(before: LayoutRefusals | None, now: float, reason: str) -> LayoutRefusals:
    """Add a refusal at `now` to those before."""
    count, first = (before.count, before.first) if before is not None else (0, now)
    return LayoutRefusals(count + 1, first, now, reason)
