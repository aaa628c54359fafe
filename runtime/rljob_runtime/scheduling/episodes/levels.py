"""Levels: how many open episodes of each environment are where, over time, in a bounded number of samples.

Long rounds are sampled less often: once the samples of an environment are too many, each second one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """Open episodes of an environment: with a turn open, without one, and without a runner that has begun them."""

    model: int = 0
    outside: int = 0
    waiting: int = 0


class Levels:
    """Samples by environment, at most `most` each. An even number keeps samples evenly spaced."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._samples: dict[str, list[tuple[float, Level]]] = {}
        self._spacing = 0.0
        """Least seconds between two samples."""
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Return whether a sample is wanted."""
        return now >= self._last + self._spacing

    def add(self, now: float, levels: Mapping[str, Level]) -> None:
        """Add a sample. Environments that are left out have no open episode."""
        last, self._last = self._last, now
        for name in levels.keys() | self._samples.keys():
            self._samples.setdefault(name, []).append((now, levels.get(name, Level())))
        if any(len(samples) > self._most for samples in self._samples.values()):
            self._spacing = 2 * (self._spacing or now - last)
            self._samples = {name: samples[::2] for name, samples in self._samples.items()}

    def take(self) -> dict[str, list[tuple[float, Level]]]:
        """Return the samples since the last call."""
        taken, self._samples = self._samples, {}
        self._spacing, self._last = 0.0, float("-inf")
        return {name: samples for name, samples in taken.items() if any(level != Level() for _, level in samples)}
