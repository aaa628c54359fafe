"""How many groups may be open in a job of the model: by the rule that the coordinator has, told what it is told."""

from __future__ import annotations

from rljob_bench.async_systems.rollouts import Rollouts
from rljob_runtime.scheduling.asynchronous.experience_buffer import BufferLimits, capacity_after


class Admission:
    """The number of groups that may be open now, `capacity`.

    It is `rounds` rounds' worth of groups; with `rounds` None as many as the trainer needs.
    """

    def __init__(self, rollouts: Rollouts, count: int, rounds: float | None) -> None:
        self._rollouts = rollouts
        self._count = count
        self._limits = BufferLimits.of(count, None if rounds is None else max(count, round(rounds * count)))
        self.capacity = self._limits.first
        self._fullness = 0.0
        self._left = 0
        self._ended = 0.0

    def look(self, now: float) -> None:
        """See what engines do."""
        self._fullness = max(self._fullness, self._rollouts.fullness(now))

    def took(self, left: int) -> None:
        """Record that an update took its groups and left `left` ready ones."""
        self._left = left

    def trained(self, end: float, waited: float) -> None:
        """Record that the update ended at `end`, and that the trainer had waited `waited` seconds for its groups."""
        share = waited / (end - self._ended) if waited else 0.0
        self.capacity = capacity_after(self.capacity, self._limits, self._count, share, self._left, self._fullness)
        self._fullness, self._ended = 0.0, end
