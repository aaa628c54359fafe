"""Surprise guard: what a machine learns from a switch within its round.

A latency model that was never used at this batch may be wrong. If steps after a switch take clearly longer than
predicted, that size's model is corrected by the measured ratio, and the usual rule then decides. A pair of sizes that
was undone before its cost was earned back is closed for the rest of the round, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine

SURPRISE = 1.3
"""Measured over predicted seconds of steps above which a model is wrong."""
STEPS = 20
"""Steps after a switch that are compared: fewer may be one pause of the machine."""


@dataclass
class _SizeSteps:
    steps: float = 0.0
    measured: float = 0.0
    predicted: float = 0.0


@dataclass(frozen=True)
class _LastSwitch:
    at: float
    start: int
    target: int
    seconds: float

    def is_undone_by(self, start: int, target: int, at: float) -> bool:
        """Check whether a switch at `at` undoes this one before as much time passed as it took."""
        return (self.target, self.start) == (start, target) and at - (self.at + self.seconds) < self.seconds


class SurpriseGuard:
    """The guard of one machine for one round."""

    def __init__(self) -> None:
        self._steps: dict[int, _SizeSteps] = {}
        self._last: _LastSwitch | None = None
        self._closed: set[tuple[int, int]] = set()

    @property
    def closed(self) -> frozenset[tuple[int, int]]:
        """(from, to) that are not used again in this round."""
        return frozenset(self._closed)

    def switched(self, start: int, target: int, at: float, seconds: float) -> None:
        """Record a switch that began at `at` and took `seconds`."""
        last = self._last
        if last is not None and last.is_undone_by(start, target, at):
            self._closed |= {(start, target), (target, start)}
        self._last = _LastSwitch(at, start, target, seconds)

    def stepped(self, size: int, steps: float, measured: float, predicted: float) -> None:
        """Record decode steps on engines of this size: measured and predicted seconds of all of them."""
        sums = self._steps.setdefault(size, _SizeSteps())
        sums.steps += steps
        sums.measured += measured
        sums.predicted += predicted

    def slowdown(self, size: int) -> float:
        """Return the factor by which a size's model is wrong; 1 if it is not clearly too optimistic."""
        sums = self._steps.get(size)
        if sums is None or sums.steps < STEPS or sums.measured <= SURPRISE * sums.predicted:
            return 1.0
        return sums.measured / sums.predicted if sums.predicted > 0 else 1.0

    def corrected(self, engines: Mapping[int, SizedEngine]) -> dict[int, SizedEngine]:
        """Return the engines with corrected latency models."""
        return {
            size: engine
            if (factor := self.slowdown(size)) == 1
            else replace(engine, latency=engine.latency.scaled(factor))
            for size, engine in engines.items()
        }
