"""Write latency: detects a store volume that is too slow.

A slow volume loses nothing, but updates wait for it and unwritten tokens fill the memory, so users must know. A late
call reports it immediately, also while the call still waits. The report ends after a period without late calls.
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_SECONDS = 10.0
"""A store call that takes longer is late; flushes come every second."""
LASTING_SECONDS = 60.0
"""Seconds after a late call for which the volume counts as slow."""


@dataclass(frozen=True)
class LatencyWindow:
    """Times are seconds of the caller's clock. `late`: time of the last late call."""

    late: float | None = None

    def observe(self, since: float, now: float) -> LatencyWindow:
        """Record a call from `since` that ends now or still waits."""
        return LatencyWindow(now) if now - since > LATE_SECONDS else self

    def slow(self, now: float) -> bool:
        """Check whether the volume counts as slow."""
        return self.late is not None and now - self.late < LASTING_SECONDS
