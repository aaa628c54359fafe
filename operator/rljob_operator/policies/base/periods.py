"""Periods: when the operator acts without an event."""

from __future__ import annotations

SILENT_SECONDS = 15.0
"""A kubelet renews its Lease every 10 s: one missed renewal makes it silent."""
REFUSED_AGAIN_SECONDS = 15.0
"""Seconds until a part that the API server refused is tried again: a person or a quota may have changed."""
SECOND_RESYNC_SECONDS = 10.0
"""Seconds from a leader's first resync to its second one."""
RESYNCED_PER_SECOND = 20.0
"""Jobs that a resync marks in a second."""


def is_silent(unchanged: float) -> bool:
    """Tell whether a kubelet is silent whose Lease has not changed for so many seconds."""
    return unchanged >= SILENT_SECONDS


def after_refusal(again_seconds: float | None) -> float:
    """Return the seconds until a refused plan is tried again. `again_seconds`: the plan's own, if it has any."""
    return REFUSED_AGAIN_SECONDS if again_seconds is None else min(REFUSED_AGAIN_SECONDS, again_seconds)


def resync_pause(first: bool, resync_seconds: float) -> float:
    """Return the seconds from one resync to the next. `first`: it is a leader's first one."""
    return min(SECOND_RESYNC_SECONDS, resync_seconds) if first else resync_seconds


def resync_spread(jobs: int, resync_seconds: float) -> float:
    """Return the seconds over which a resync spreads so many jobs. At most half of the period."""
    return min(jobs / RESYNCED_PER_SECOND, resync_seconds / 2)
