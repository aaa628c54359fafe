"""How long a program may run against one test case: RollPacker's adaptive timeout (§4.3), in processor seconds.

    T = min(max(Tmin, λ · Tanchor), Tmax)

Tanchor is the longest run of a correct response to this test so far; without one T is Tmax. Only correct runs move it,
and only upward, so it is never below the slowest correct one. A small share of runs, the *shadow* sample, goes on to
Tmax although T decides: it tells how many responses would have been right after their timeout. A late right run still
counts as too late, as it would have outside the sample, but it is correct: it raises the anchor, and a timeout that was
too short mends itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WALL_FACTOR = 2.0
"""Wall-clock seconds for each processor second allowed: a program that sleeps is not waited for much longer."""
SHADOW_SHARE = 0.02


_QUANTUM = 1000
"""Anchors are kept in milliseconds, rounded up: short numbers in the store."""


@dataclass(frozen=True)
class TimeoutRule:
    """Seconds are processor seconds. Raises ValueError unless 0 < minimum <= maximum, factor >= 1 and
    0 <= shadow_share <= 1."""

    minimum: float = 2.0
    factor: float = 1.5
    maximum: float = 30.0
    shadow_share: float = SHADOW_SHARE
    seed: int = 0
    """Of the choice of the shadow sample."""

    def __post_init__(self) -> None:
        if not (0 < self.minimum <= self.maximum < math.inf and 1 <= self.factor < math.inf):
            raise ValueError(f"a timeout must have 0 < minimum <= maximum and factor >= 1, not {self}")
        if not 0 <= self.shadow_share <= 1:
            raise ValueError(f"the shadow sample is a share from 0 to 1, not {self.shadow_share}")

    def seconds(self, anchor: float | None) -> float:
        """T for an anchor (None: no correct run yet)."""
        return self.maximum if anchor is None else min(max(self.minimum, self.factor * anchor), self.maximum)


@dataclass(frozen=True)
class TimeoutDecision:
    """What one run may take. `deciding` is T; the run is ended at `cpu_seconds` and `wall_seconds`, which lie beyond T
    in the shadow sample."""

    test: str
    timeout: float
    cpu_seconds: float

    @property
    def wall_seconds(self) -> float:
        """Bound of the wall clock."""
        return WALL_FACTOR * self.cpu_seconds

    @property
    def shadow_run(self) -> bool:
        """Whether it runs on after T."""
        return self.cpu_seconds > self.timeout

    @property
    def without_shadow_run(self) -> TimeoutDecision:
        """The same, ended at T: what an answer waits for. The shadow run is another one, behind it."""
        return replace(self, cpu_seconds=self.timeout)

    def in_time(self, cpu_seconds: float, wall_seconds: float) -> bool:
        """Whether a run that took so long is within T."""
        return cpu_seconds <= self.timeout and wall_seconds <= WALL_FACTOR * self.timeout


@dataclass
class TimeoutStats:
    """Totals. `late` of `shadow_overruns` is the share of timeouts that were unjust."""

    runs: int = 0
    overruns: int = 0
    """Past T, whatever came of them."""
    shadow_overruns: int = 0
    """Of these in the shadow sample: they ran on."""
    late: int = 0
    """Of these right in the end."""

    @property
    def unjust(self) -> float | None:
        """Estimated share of timeouts that a right response suffered; None before the sample has seen one."""
        return self.late / self.shadow_overruns if self.shadow_overruns else None


class AdaptiveTimeout:
    """The anchors of a job's test cases. A test is any text that names it for good, as "code/17/0"."""

    def __init__(self, rule: TimeoutRule) -> None:
        self.rule = rule
        self.stats = TimeoutStats()
        self._anchors: dict[str, int] = {}
        self._raised: set[str] = set()

    def anchor(self, test: str) -> float | None:
        """The longest correct run, in seconds."""
        kept = self._anchors.get(test)
        return None if kept is None else kept / _QUANTUM

    def decide(self, test: str, sample: str) -> TimeoutDecision:
        """What a run of `sample` (any text that names the response) against `test` may take. The same two names always
        give the same choice for the shadow sample, in whatever order responses come."""
        deciding = self.rule.seconds(self.anchor(test))
        shadow = _uniform(self.rule.seed, test, sample) < self.rule.shadow_share
        return TimeoutDecision(test, deciding, self.rule.maximum if shadow else deciding)

    def record(self, allowance: TimeoutDecision, cpu_seconds: float, wall_seconds: float, right: bool) -> bool:
        """Learn from a run that an answer waited for; whether it counts as passed: right, and in time. `right` must be
        False for a run that was ended at its bound. What was no run (a failure of ours) is not noted. What came of one
        of the shadow sample after T is for `record_shadow_run`."""
        in_time = allowance.in_time(cpu_seconds, wall_seconds)
        self.stats.runs += 1
        self.stats.overruns += not in_time
        self._learn(allowance.test, cpu_seconds, right)
        return right and in_time

    def record_shadow_run(self, allowance: TimeoutDecision, cpu_seconds: float, right: bool) -> None:
        """Of a run past T, which is noted already: what came of it when it could go on, to the bound of `allowance`.
        Nothing of it changes how it was judged; a right one raises the anchor."""
        self.stats.shadow_overruns += 1
        self.stats.late += right
        self._learn(allowance.test, cpu_seconds, right)

    def _learn(self, test: str, cpu_seconds: float, right: bool) -> None:
        kept = math.ceil(cpu_seconds * _QUANTUM)
        if right and kept > self._anchors.get(test, -1):
            self._anchors[test] = kept
            self._raised.add(test)

    def drain_raised(self) -> dict[str, int]:
        """The anchors that rose since the last call, or since `restore`: milliseconds by test."""
        risen = {test: self._anchors[test] for test in sorted(self._raised)}
        self._raised.clear()
        return risen

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Replace all anchors by stored ones. Raises ValueError for what `drain_raised` cannot have made."""
        for test, kept in plain.items():
            if not isinstance(kept, int) or isinstance(kept, bool) or kept < 0:
                raise ValueError(f"the anchor of test {test!r} is {kept!r}; milliseconds from 0 would be right")
        self._anchors = dict(plain)
        self._raised.clear()


def _uniform(seed: int, test: str, sample: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    text = f"{seed}\0{test}\0{sample}".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2.0**64
