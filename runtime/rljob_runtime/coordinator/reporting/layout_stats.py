"""Layout stats: visits of resting machines to layouts, and the totals of layout switches for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_runtime.scheduling.adaptive_tp.kv_drops import KvDropTotals


@dataclass
class Visit:
    """A visit of a resting machine to another layout: seconds of each part there and back, and whether it arrived."""

    there: dict[str, float] = field(default_factory=dict)
    back: dict[str, float] = field(default_factory=dict)
    reached: bool = False


@dataclass
class VisitTotals:
    """Visits of one coordinator's machines: their number, `loads` that were measured, and seconds.

    `delays`: how often new weights or layouts waited for a machine that was not back, `delay_seconds` in all.
    `overruns`: those of them that were foreseen."""

    visits: int = 0
    loads: int = 0
    seconds: float = 0.0
    delays: int = 0
    delay_seconds: float = 0.0
    overruns: int = 0

    @property
    def unforeseen(self) -> int:
        """Waits for visits that had to end in time."""
        return self.delays - self.overruns

    def record(self, loads: int, seconds: float) -> None:
        """Record a visit that has ended."""
        self.visits += 1
        self.loads += loads
        self.seconds += seconds

    def record_delay(self, seconds: float, foreseen: bool = False) -> None:
        """Record a wait, unless it took no time."""
        self.delays += seconds > 0
        self.overruns += foreseen and seconds > 0
        self.delay_seconds += seconds


@dataclass(frozen=True)
class LayoutStats:
    """Totals for metrics: removals of KV files, bytes that failed ones keep, and visits to layouts.

    `switch_wait_seconds`: for which stages did nothing else because a machine switched."""

    kv_drops: KvDropTotals = field(default_factory=KvDropTotals)
    kv_kept_bytes: int = 0
    visits: VisitTotals = field(default_factory=VisitTotals)
    switch_wait_seconds: float = 0.0
