"""Condition reason: why a condition has its status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConditionReason:
    """Reason and message of a condition."""

    reason: str
    message: str
