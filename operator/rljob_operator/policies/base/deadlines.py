"""Deadlines: arithmetic on points in time, in full seconds as the status holds them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta


def deadline(start: datetime | None, seconds: float | None) -> datetime | None:
    """Add seconds to `start`. None where either is missing."""
    if start is None or seconds is None:
        return None
    return start + timedelta(seconds=seconds)


def is_past(moment: datetime | None, now: datetime) -> bool:
    """Tell whether a deadline exists and is over."""
    return moment is not None and now >= moment


def earliest_wait(moments: Iterable[datetime | None], now: datetime) -> float | None:
    """Return the seconds until the first moment in the future; None without one."""
    ahead = [(moment - now).total_seconds() for moment in moments if moment is not None and moment > now]
    return min(ahead) if ahead else None
