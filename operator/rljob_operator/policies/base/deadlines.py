"""Arithmetic on points in time, in whole seconds as the status keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta


def deadline(start: datetime | None, seconds: float | None) -> datetime | None:
    """`start` plus `seconds`, or None where either is missing."""
    if start is None or seconds is None:
        return None
    return start + timedelta(seconds=seconds)


def is_past(moment: datetime | None, now: datetime) -> bool:
    """Whether a deadline is there and over."""
    return moment is not None and now >= moment


def earliest_wait(moments: Iterable[datetime | None], now: datetime) -> float | None:
    """Seconds until the first of the moments that lie ahead; None without any. A moment that is over asks for
    nothing."""
    ahead = [(moment - now).total_seconds() for moment in moments if moment is not None and moment > now]
    return min(ahead) if ahead else None
