"""Weight versions: which were published after which step, and which belong to a history that a rewind threw away.

A version is never used twice. After a rewind the next one is above every version ever published (DESIGN: weight
versions).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNREPORTED = 2
"""Versions that may be published after a report: the first of a coordinator's life, and the one after its round."""


@dataclass(frozen=True)
class PublishedVersion:
    """One version: the weights after `step` updates. `lost`: made by updates that a rewind undid."""

    version: int
    step: int
    abandoned: bool = False


@dataclass(frozen=True)
class Versions:
    """All versions ever published, in order; a value, changed by making a new one."""

    history: tuple[PublishedVersion, ...] = ()
    floor: int = 0
    """Versions seen elsewhere (on a relay, say) that this history does not know: the next one is above them too."""

    def next_version(self) -> int:
        """A number never used before."""
        return max([self.floor, *(entry.version for entry in self.history)]) + 1

    def publish(self, version: int, step: int) -> Versions:
        """With `version` published for the weights after `step`. Raises `ValueError` if it was used before."""
        if version < self.next_version():
            raise ValueError(
                f"weight version {version} must be at least {self.next_version()}: versions are never reused"
            )
        return replace(self, history=(*self.history, PublishedVersion(version, step)))

    def rewind(self, step: int) -> Versions:
        """Back to the weights after `step`: what later steps published is lost, and stays in the history."""
        return replace(
            self,
            history=tuple(replace(entry, abandoned=entry.abandoned or entry.step > step) for entry in self.history),
        )

    def with_observed(self, version: int) -> Versions:
        """With `version` known to exist somewhere."""
        return replace(self, floor=max(self.floor, version))

    def with_reported(self, version: int) -> Versions:
        """With `version` as the newest that a former coordinator reported (0: none). A history that is empty all the
        same was lost with its store: the numbers that may have been used since that report are left out too."""
        return self if self.history else self.with_observed(version + UNREPORTED)

    def current(self, step: int) -> int | None:
        """The version under which relays can still be given the weights after `step`: they only go upwards, so it is
        the newest of all. None when a new number is needed."""
        version = self.of_step(step)
        return version if version == self.next_version() - 1 else None

    def of_step(self, step: int) -> int | None:
        """The newest version that holds the weights after `step`, if it was published and not lost."""
        live = [entry.version for entry in self.history if entry.step == step and not entry.abandoned]
        return max(live, default=None)

    def step_of(self, version: int) -> int | None:
        """After which step a version's weights are; None for an unknown one."""
        return next((entry.step for entry in self.history if entry.version == version), None)

    def is_abandoned(self, version: int) -> bool:
        """Whether a rewind threw the version away."""
        return any(entry.version == version and entry.abandoned for entry in self.history)
