"""KV drops: decides when a replica is asked again to remove its KV file, after a removal that failed.

A file that stays takes shared memory until its replica writes another one. A replica that sleeps in the new layout may
never do so. It is asked again after growing delays, and a few times only: one that never answers costs no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_runtime.scheduling.backoff import Backoff

RETRIES = Backoff(initial=1.0, factor=4.0, maximum=60.0, limit=5)
"""Seconds between a failure and the next try."""
WAIT_SECONDS = 1.0
"""Time for which an export waits for a removal in progress. A late one would remove the new file."""


@dataclass
class KvDropTotals:
    """Removals of KV files.

    `failures`: tries that failed. `retries`: tries after one that failed. `abandoned`: files not asked for any more."""

    removed: int = 0
    failures: int = 0
    retries: int = 0
    abandoned: int = 0


@dataclass
class KvDrops:
    """The files that the replicas of one machine still have to remove. It lives as long as the machine's processes.

    `totals`: may be shared by machines."""

    totals: KvDropTotals = field(default_factory=KvDropTotals)
    _due: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By replica: failures in a row, and the time of the next try."""
    _bytes: dict[str, int] = field(default_factory=dict)
    """By replica: bytes of its file."""
    _failed: set[str] = field(default_factory=set)
    """Replicas that keep their file after a failure."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the files whose removal has failed, at most: a load of other weights removes them too."""
        return sum(self._bytes.get(replica, 0) for replica in self._failed)

    def add(self, files: Mapping[str, int], now: float) -> None:
        """Add the files of these replicas, with their bytes; they are due now."""
        self._due |= dict.fromkeys(files, (0, now))
        self._bytes |= files
        self._failed -= files.keys()

    def begin(self, replica: str) -> None:
        """Record that a replica is asked."""
        self.totals.retries += self._due.get(replica, (0, 0.0))[0] > 0

    def due(self, now: float) -> list[str]:
        """Return the replicas that shall remove their file now."""
        return sorted(replica for replica, (_, at) in self._due.items() if at <= now)

    def record_removed(self, replica: str) -> None:
        """Record that a replica has removed its file."""
        self._forget(replica)
        self.totals.removed += 1

    def record_failure(self, replica: str, now: float) -> float | None:
        """Record a try that failed; return the seconds until the next one, or None if there is none."""
        self.totals.failures += 1
        self._failed.add(replica)
        failed = self._due.get(replica, (0, now))[0] + 1
        if (delay := RETRIES.delay(failed)) is None:
            self._due.pop(replica, None)
            self.totals.abandoned += 1
        else:
            self._due[replica] = failed, now + delay
        return delay

    def record_written(self, replica: str) -> None:
        """Record that a replica was asked to write: that removes its earlier file, a later drop the new one."""
        self._forget(replica)

    def _forget(self, replica: str) -> None:
        self._due.pop(replica, None)
        self._bytes.pop(replica, None)
        self._failed.discard(replica)
