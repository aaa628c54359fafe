"""Whether the volume of the store keeps up. A slow one loses nothing, but updates wait for it and memory fills with
what is not written yet: people are told. A late call tells it at once, also while it still waits; a while without one
takes it back."""

from __future__ import annotations

from dataclasses import dataclass

LATE_SECONDS = 10.0
"""A call of the store that takes longer is late; flushes come every second."""
LASTING_SECONDS = 60.0
"""For how long after a late call the volume counts as slow."""


@dataclass(frozen=True)
class LatencyWindow:
    """Times are the caller's, in seconds. `late`: when a call was seen to be late, the last time."""

    late: float | None = None

    def observe(self, since: float, now: float) -> LatencyWindow:
        """A call that was made at `since` waits still, or ends now."""
        return LatencyWindow(now) if now - since > LATE_SECONDS else self

    def slow(self, now: float) -> bool:
        """Whether the volume counts as slow."""
        return self.late is not None and now - self.late < LASTING_SECONDS
