"""Stall reason: why a job or a pod does not progress, in the form of a condition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConditionReason:
    """Why a job or one of its pods does not progress."""

    reason: str
    message: str
