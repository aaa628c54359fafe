"""Outside time: the part of their time that episodes spend outside of the engines, in tools and in their harness.

A response that is outside gets no token, and leaves its place in the batch to others. So a response that is in the
engine meets a share of the others there. A token takes as long as a step of that batch, and the time outside in
addition. The latency model of B responses is then piecewise linear too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rljob_runtime.perf_model.latency_model import LatencyModel


def token_seconds(responses: Sequence[tuple[int, float]]) -> float:
    """Return by how many seconds outside a response is longer for each token more. `responses`: tokens and seconds.

    By least squares, not below 0, and not above the mean seconds over the mean tokens: no length goes with less than 0.

    >>> token_seconds([(100, 2.0), (200, 3.0), (300, 4.0)]), token_seconds([(100, 2.0), (200, 9.0)])
    (0.01, 0.03666666666666667)
    >>> token_seconds([(100, 2.0), (100, 4.0)]), token_seconds([])
    (0.0, 0.0)
    """
    if not responses:
        return 0.0
    tokens, seconds = fmean(one for one, _ in responses), fmean(one for _, one in responses)
    spread = math.fsum((one - tokens) ** 2 for one, _ in responses)
    if not spread:
        return 0.0
    slope = math.fsum((one - tokens) * (its - seconds) for one, its in responses) / spread
    return min(max(0.0, slope), seconds / tokens)


@dataclass(frozen=True)
class OutsideTime:
    """Seconds outside for each sampled token, and the share of their time that responses are inside an engine.

    `fixed`: seconds outside of each response besides, whatever its length.

    >>> half = OutsideTime(0.01, 0.5).latency(LatencyModel(((1, 0.01), (11, 0.02)), 1e-6, 0.0, 0.0, 0.0))
    >>> round(half.step(1, 0), 4), round(half.step(21, 1000), 4)
    (0.02, 0.0305)
    """

    token_seconds: float = 0.0
    inside: float = 1.0
    fixed: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.inside <= 1 or self.token_seconds < 0 or self.fixed < 0:
            raise ValueError(f"{self}: a share above 0, at most 1, and seconds of 0 or more would be right")

    def latency(self, engine: LatencyModel) -> LatencyModel:
        """Return the seconds of a token of each response, by the number of responses in the engine or outside."""
        if self == INSIDE:
            return engine
        return replace(
            engine,
            knots=tuple((self._responses(batch), seconds + self.token_seconds) for batch, seconds in engine.knots),
            context_token_seconds=self.inside * engine.context_token_seconds,
        )

    def batch(self, responses: float) -> float:
        """Return the batch that a response meets in an engine with so many, itself included."""
        return 1 + (responses - 1) * self.inside

    def _responses(self, batch: float) -> float:
        """Return the number of responses of which one meets this batch: the inverse of `batch`."""
        return 1 + (batch - 1) / self.inside

    def responses(self, running: int) -> int:
        """Return how many responses an engine has that runs so many at a time."""
        return int(self._responses(running))


INSIDE = OutsideTime()
"""Of responses of one turn."""
