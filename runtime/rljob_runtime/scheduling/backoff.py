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
"""Losses of the trainer without a further round in between, after which the job fails."""


@dataclass
class TrainerLosses:
    """Losses of the trainer since the job finished a round that it had not finished before.

    A round that is repeated after a loss is no progress. A trainer that ends in each update after its checkpoint, for
    want of memory for example, would else repeat the rounds before it for ever.
    """

    count: int = 0
    furthest: int = 0

    def lose(self) -> bool:
        """Count a loss; return whether the job fails."""
        self.count += 1
        return self.count > MAX_TRAINER_LOSSES

    def finish(self, step: int) -> None:
        """Take note of a finished round."""
        if step > self.furthest:
            self.count, self.furthest = 0, step
