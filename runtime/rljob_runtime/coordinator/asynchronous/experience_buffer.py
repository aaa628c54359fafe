"""Experience buffer: ready groups and their staleness, the input of `scheduling.asynchronous.experience_buffer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import pstdev

from rljob_api.spec.training import Sampler
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.asynchronous.experience_buffer import (
    BufferLimits,
    Experience,
    capacity_after,
    evict,
    inflight_limit,
    sample,
)
from rljob_runtime.scheduling.weight_versions import Versions

MAX_VERSIONS = 4096
"""Number of versions whose steps are kept: published by this coordinator, or in the store at its start."""


@dataclass(frozen=True)
class ReadyGroup:
    """A ready group.

    `ready` rises in the order in which groups became ready. `spread`: standard deviation of its rewards."""

    prompt: PromptKey
    version: int
    ready: int
    spread: float


class ExperienceBuffer:
    """The ready groups of a job.

    `limits`: of the number of open groups. `count`: groups of an update. `bound`: on staleness, None for none."""

    def __init__(self, kind: Sampler, limits: BufferLimits, count: int, bound: int | None, seed: int) -> None:
        self._kind = kind
        self._limits = limits
        self.capacity = limits.first
        """Maximum number of open groups."""
        self._left = 0
        """Ready groups that the last update did not take."""
        self._count = count
        self._bound = bound
        self._seed = seed
        self._ready: dict[PromptKey, ReadyGroup] = {}
        self._steps: dict[int, int] = {}
        self._abandoned: frozenset[int] = frozenset()
        self._next = 0
        self.taken = 0
        """Number of updates that have their groups."""

    def __len__(self) -> int:
        return len(self._ready)

    def set_versions(self, versions: Versions, taken: int) -> None:
        """Set the step of each version, and the number of updates that have their groups."""
        entries = reversed(versions.history)
        # A rewind gives a newer version an earlier step.
        steps = accumulate((entry.step for entry in reversed(versions.history)), min)
        self._steps = {entry.version: step for entry, step in zip(entries, steps, strict=True)}
        self._abandoned = frozenset(entry.version for entry in versions.history if entry.abandoned)
        self.taken = taken

    def restore_capacity(self, capacity: int) -> None:
        """Restore the capacity of a former coordinator, within the present limits."""
        self.capacity = self._limits.within(capacity)

    def knows(self, version: int) -> bool:
        """Check whether a version belongs to this history."""
        return version in self._steps

    def published(self, version: int, step: int) -> None:
        """Record that the weights after `step` are this version.

        The oldest versions are forgotten: no replica holds them."""
        self._steps = {known: min(its, step) for known, its in self._steps.items()} | {version: step}
        while len(self._steps) > MAX_VERSIONS:
            del self._steps[min(self._steps)]

    def staleness(self, version: int) -> int:
        """Return the number of updates between a version and the next update without groups.

        Abandoned versions are at least one behind: no update starts from them. They are no fresher than a newer
        version, which may have generated later turns of the same response."""
        behind = self.taken - self._steps.get(version, self.taken)
        return max(behind, 1 if version in self._abandoned else 0)

    def fill(self, ready: Iterable[ReadyGroup]) -> None:
        """Replace the ready groups."""
        self._ready = {one.prompt: one for one in ready}
        self._next = max((one.ready for one in self._ready.values()), default=self._next)

    def add(self, prompt: PromptKey, version: int, rewards: Sequence[float]) -> None:
        """Add a group that became ready."""
        self._next += 1
        self._ready[prompt] = ReadyGroup(prompt, version, self._next, pstdev(rewards))

    def admit(self, version: int, in_flight: Iterable[int]) -> int:
        """Return how many groups may start with this version. `in_flight`: versions of the groups in flight."""
        opened = [self.staleness(one) for one in (*in_flight, *(one.version for one in self._ready.values()))]
        return inflight_limit(opened, self.staleness(version), self.capacity, self._count, self._bound)

    def sample(self, in_flight: Iterable[int]) -> tuple[PromptKey, ...]:
        """Select the groups of the next update, in the sampler's order, the oldest draw first; () if it must wait."""
        return sample(
            self._kind,
            self._experiences(),
            self._count,
            self._seed + self.taken,
            self._bound,
            [self.staleness(version) for version in in_flight],
        )

    def take(self, prompts: Iterable[PromptKey], step: int) -> Mapping[PromptKey, int]:
        """Assign these groups to the update `step`. Returns their staleness there."""
        stale = {prompt: self.staleness(self._ready.pop(prompt).version) for prompt in prompts}
        self.taken, self._left = step, len(self._ready)
        return stale

    def adapt(self, waited: float, fullness: float) -> None:
        """Adapt the capacity after an update: see `scheduling.asynchronous.experience_buffer.capacity_after`."""
        self.capacity = capacity_after(self.capacity, self._limits, self._count, waited, self._left, fullness)

    def evicted(self) -> tuple[PromptKey, ...]:
        """Remove and return the groups that no update may take."""
        gone = evict(self._experiences(), self._bound) if self._bound is not None else ()
        for prompt in gone:
            del self._ready[prompt]
        return gone

    def clear(self) -> tuple[PromptKey, ...]:
        """Remove and return all ready groups."""
        prompts = tuple(self._ready)
        self._ready = {}
        return prompts

    def is_too_stale(self, version: int) -> bool:
        """Check whether no update may take a group of this version any more."""
        return self._bound is not None and self.staleness(version) > self._bound

    def _experiences(self) -> list[Experience]:
        return [
            Experience(one.prompt, one.ready, self.staleness(one.version), one.spread) for one in self._ready.values()
        ]
