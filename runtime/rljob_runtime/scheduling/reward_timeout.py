"""Reward timeout: bounds the run time of a program per test case, in processor seconds (RollPacker §4.3).

    T = min(max(Tmin, λ · Tanchor), Tmax)

Tanchor is the longest run of a correct response to this test; without one T is Tmax. Only correct runs raise it, so T
is never below the slowest correct run. A small share of runs, the *shadow* sample, continues to Tmax after T. It
measures how many responses would have been correct after their timeout. A late correct run still counts as failed, but
it raises the anchor, so a timeout that was too short corrects itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WALL_FACTOR = 2.0
"""Wall-clock seconds per processor second: bounds programs that sleep."""
SHADOW_SHARE = 0.02


_QUANTUM = 1000
"""Anchors are kept in milliseconds, rounded up: short numbers in the store."""


@dataclass(frozen=True)
class TimeoutRule:
    """Parameters of the timeout, in processor seconds.

    Raises ValueError unless 0 < minimum <= maximum, factor >= 1 and 0 <= shadow_share <= 1."""

    minimum: float = 2.0
    factor: float = 1.5
    maximum: float = 30.0
    shadow_share: float = SHADOW_SHARE
    seed: int = 0
    """Seed of the shadow sample."""

    def __post_init__(self) -> None:
        if not (0 < self.minimum <= self.maximum < math.inf and 1 <= self.factor < math.inf):
            raise ValueError(f"a timeout must have 0 < minimum <= maximum and factor >= 1, not {self}")
        if not 0 <= self.shadow_share <= 1:
            raise ValueError(f"the shadow sample is a share from 0 to 1, not {self.shadow_share}")

    def seconds(self, anchor: float | None) -> float:
        """Return T for an anchor (None: no correct run yet)."""
        return self.maximum if anchor is None else min(max(self.minimum, self.factor * anchor), self.maximum)


@dataclass(frozen=True)
class TimeoutDecision:
    """Limits of one run.

    `timeout` is T. The run ends at `cpu_seconds` and `wall_seconds`, which are above T in the shadow sample."""

    test: str
    timeout: float
    cpu_seconds: float

    @property
    def wall_seconds(self) -> float:
        """The limit of wall-clock seconds."""
        return WALL_FACTOR * self.cpu_seconds

    @property
    def shadow_run(self) -> bool:
        """Whether the run continues after T."""
        return self.cpu_seconds > self.timeout

    @property
    def without_shadow_run(self) -> TimeoutDecision:
        """The same decision, ended at T. The answer waits for this run only; the shadow run follows it."""
        return replace(self, cpu_seconds=self.timeout)

    def in_time(self, cpu_seconds: float, wall_seconds: float) -> bool:
        """Check whether a run of this duration is within T."""
        return cpu_seconds <= self.timeout and wall_seconds <= WALL_FACTOR * self.timeout


@dataclass
class TimeoutStats:
    """Totals. `late` / `shadow_overruns` estimates the share of unjust timeouts."""

    runs: int = 0
    overruns: int = 0
    """Runs past T, whatever their result."""
    shadow_overruns: int = 0
    """Runs past T in the shadow sample: they continued."""
    late: int = 0
    """Shadow overruns that were correct in the end."""

    @property
    def unjust(self) -> float | None:
        """Estimated share of timeouts of correct responses; None before the first shadow overrun."""
        return self.late / self.shadow_overruns if self.shadow_overruns else None


class AdaptiveTimeout:
    """The anchors of a job's test cases. A test has a permanent name, such as "code/17/0"."""

    def __init__(self, rule: TimeoutRule) -> None:
        self.rule = rule
        self.stats = TimeoutStats()
        self._anchors: dict[str, int] = {}
        self._raised: set[str] = set()

    def anchor(self, test: str) -> float | None:
        """Return the longest correct run in seconds."""
        kept = self._anchors.get(test)
        return None if kept is None else kept / _QUANTUM

    def decide(self, test: str, sample: str) -> TimeoutDecision:
        """Return the limits of a run of `sample` against `test`; both are names.

        The same two names give the same shadow decision, in any order of responses."""
        deciding = self.rule.seconds(self.anchor(test))
        shadow = _uniform(self.rule.seed, test, sample) < self.rule.shadow_share
        return TimeoutDecision(test, deciding, self.rule.maximum if shadow else deciding)

    def record(self, allowance: TimeoutDecision, cpu_seconds: float, wall_seconds: float, right: bool) -> bool:
        """Record a run that an answer waited for. Returns whether it passed: correct, and in time.

        `right` must be False for a run that ended at its limit. Failures of ours are not runs and are not recorded. The
        result of a shadow run after T goes to `record_shadow_run`."""
        in_time = allowance.in_time(cpu_seconds, wall_seconds)
        self.stats.runs += 1
        self.stats.overruns += not in_time
        self._learn(allowance.test, cpu_seconds, right)
        return right and in_time

    def record_shadow_run(self, allowance: TimeoutDecision, cpu_seconds: float, right: bool) -> None:
        """Record the result of a run that continued past T, up to the limit of `allowance`.

        The run itself is recorded already and its verdict stays; a correct one raises the anchor."""
        self.stats.shadow_overruns += 1
        self.stats.late += right
        self._learn(allowance.test, cpu_seconds, right)

    def _learn(self, test: str, cpu_seconds: float, right: bool) -> None:
        kept = math.ceil(cpu_seconds * _QUANTUM)
        if right and kept > self._anchors.get(test, -1):
            self._anchors[test] = kept
            self._raised.add(test)

    def drain_raised(self) -> dict[str, int]:
        """Return the anchors raised since the last call or `restore`: milliseconds by test."""
        risen = {test: self._anchors[test] for test in sorted(self._raised)}
        self._raised.clear()
        return risen

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Replace all anchors by stored ones. Raises ValueError for values that `drain_raised` cannot have returned."""
        for test, kept in plain.items():
            if not isinstance(kept, int) or isinstance(kept, bool) or kept < 0:
                raise ValueError(f"the anchor of test {test!r} is {kept!r}; milliseconds from 0 would be right")
        self._anchors = dict(plain)
        self._raised.clear()


def _uniform(seed: int, test: str, sample: str) -> float:
    """Return a number in [0, 1) that depends on the arguments only."""
    text = f"{seed}\0{test}\0{sample}".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2.0**64
