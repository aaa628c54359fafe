"""Reward statistics: totals of a job's rewards, for the round's report and the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class RewardStats:
    """Totals since the coordinator started, or their growth."""

    scored: int = 0
    """Samples scored."""
    seconds: float = 0.0
    """Seconds spent on samples, with the wait for a process."""
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Aborted samples, by rule and reason."""
    programs: Counter[str] = field(default_factory=Counter)
    """Runs of a program against a test, by `sandbox.program.End`."""
    program_seconds: float = 0.0
    """Processor seconds of these runs."""
    timeouts: int = 0
    """Runs that exceeded their adaptive timeout."""
    shadow_timeouts: int = 0
    """Of these timeouts, those in the shadow sample, which continued."""
    late: int = 0
    """Of these shadow runs, those with a correct result."""
    processes: int = 0
    """Processes started to score in: workers and supervisors."""

    def since(self, before: RewardStats) -> RewardStats:
        """Return the growth since `before`."""
        added = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return RewardStats(**added)
