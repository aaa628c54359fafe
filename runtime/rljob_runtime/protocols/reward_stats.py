"""What a job's rewards did, as numbers: for the round's report and the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class RewardStats:
    """Totals since the coordinator started, or what was added to them."""

    scored: int = 0
    """Samples."""
    seconds: float = 0.0
    """Spent on samples, waiting for a turn included."""
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Samples aborted, by rule and reason."""
    programs: Counter[str] = field(default_factory=Counter)
    """Runs of a program against a test, by how they ended (`sandbox.program.End`)."""
    program_seconds: float = 0.0
    """Processor time of these."""
    timeouts: int = 0
    """Of these past their adaptive timeout."""
    shadow_timeouts: int = 0
    """Of these in the shadow sample: they ran on."""
    late: int = 0
    """Of these right in the end."""
    processes: int = 0
    """Started to score in: workers and supervisors."""

    def since(self, before: RewardStats) -> RewardStats:
        """What was added to `before`."""
        added = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return RewardStats(**added)
