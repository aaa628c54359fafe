"""Backoff: bounded exponential delays, as a value. The caller owns the clock, the randomness and the sleeping."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Delays that grow by `factor` from `initial` to `maximum` seconds. `limit`: tries in all; None for no limit."""

    initial: float = 0.5
    factor: float = 2.0
    maximum: float = 30.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not (0 < self.initial <= self.maximum and self.factor >= 1):
            raise ValueError(f"back-off must have 0 < initial <= maximum and factor >= 1, not {self}")

    def delay(self, failures: int, uniform: float = 1.0) -> float | None:
        """Return the seconds to wait after the `failures`-th consecutive failure (from 1); None after the last try.

        `uniform` in [0, 1] is the jitter: the delay lies in the upper half of its step."""
        if self.limit is not None and failures >= self.limit:
            return None
        # 2**64 exceeds every maximum; the cap prevents an overflow of the power.
        step = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return step * (0.5 + 0.5 * uniform)


MAX_TRAINER_LOSSES = 10
"""Losses of the trainer without a finished round in between, after which the job fails."""


def keeps_failing(losses: int) -> bool:
    """Return whether the job fails after this many losses of the trainer without a finished round.

    >>> keeps_failing(10), keeps_failing(11)
    (False, True)
    """
    return losses > MAX_TRAINER_LOSSES
