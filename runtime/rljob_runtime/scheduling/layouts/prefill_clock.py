"""Prefill clock: measures how long the engines of a switched machine compute its responses again (PAT §4.3).

An engine computes contexts in steps with a budget of tokens, so its first token comes after its first step and says
nothing of the rest. The clock runs until each response that was launched after the switch has a new token, so it ends
with the slowest replica. A response that leaves the machine before its first token is not awaited, nor is one that
waits in a full engine until another one ends. The clock then measures a part of the prefill only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from rljob_runtime.protocols import EngineStats
from rljob_runtime.protocols.trajectory import Lease, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.switch_plan import FULL
from rljob_runtime.scheduling.round_plan import Launch


def is_full(stats: EngineStats) -> bool:
    """Return whether requests wait in an engine until others end: it runs as many as it may, or has no room."""
    return stats.waiting > 0 and (0 < stats.max_running <= stats.running or stats.kv_use >= FULL)


class PrefillClock:
    """The prefill of responses that were launched together. `launched`: when, in seconds on the caller's clock."""

    def __init__(self, launches: Collection[Launch], launched: float) -> None:
        self._pending = {launch.key: launch.lease for launch in launches}
        self._launched = launched
        self._last: float | None = None
        self._is_complete = True

    def record_token(self, key: TrajectoryKey, now: float) -> None:
        """Record that a response has new tokens. Others than the launched ones are ignored."""
        if self._pending.pop(key, None) is not None:
            self._last = now

    def retain(self, lease_of: Callable[[TrajectoryKey], Lease | None]) -> None:
        """Await only responses that are still generated under the lease of their launch."""
        for key, lease in list(self._pending.items()):
            if lease_of(key) != lease:
                self._drop(key)

    def record_full(self, replica: str) -> None:
        """Record that responses wait in a replica's engine until others end. See `is_full`."""
        for key, lease in list(self._pending.items()):
            if lease.replica == replica:
                self._drop(key)

    def _drop(self, key: TrajectoryKey) -> None:
        del self._pending[key]
        self._is_complete = False

    @property
    def has_ended(self) -> bool:
        """Whether no response is awaited."""
        return not self._pending

    @property
    def is_complete(self) -> bool:
        """Whether all responses were awaited to their first token."""
        return self._is_complete

    @property
    def seconds(self) -> float | None:
        """Seconds from the launch to the last first token so far; None without a token."""
        return None if self._last is None else self._last - self._launched
