"""Weight versions: the history of published versions, including those that a rewind abandoned.

A version number is never used twice. After a rewind the next one is above every version ever published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNREPORTED = 2
"""Versions that may be published after a report: the first of a coordinator's life, and the one after its round."""


@dataclass(frozen=True)
class PublishedVersion:
    """One version: the weights after `step` updates. `abandoned`: a rewind undid its updates."""

    version: int
    step: int
    abandoned: bool = False


@dataclass(frozen=True)
class Versions:
    """All versions ever published, in order; an immutable value."""

    history: tuple[PublishedVersion, ...] = ()
    floor: int = 0
    """Highest version observed elsewhere, such as on a relay: the next one is above it too."""

    def next_version(self) -> int:
        """Return a number that was never used."""
        return max([self.floor, *(entry.version for entry in self.history)]) + 1

    def publish(self, version: int, step: int) -> Versions:
        """Return the history with `version` published for the weights after `step`.

        Raises `ValueError` if it was used before."""
        if version < self.next_version():
            raise ValueError(
                f"weight version {version} must be at least {self.next_version()}: versions are never reused"
            )
        return replace(self, history=(*self.history, PublishedVersion(version, step)))

    def rewind(self, step: int) -> Versions:
        """Return the history rewound to `step`: versions of later steps are abandoned, but stay in the history."""
        return replace(
            self,
            history=tuple(replace(entry, abandoned=entry.abandoned or entry.step > step) for entry in self.history),
        )

    def with_observed(self, version: int) -> Versions:
        """Return the history with `version` known to exist elsewhere."""
        return replace(self, floor=max(self.floor, version))

    def with_reported(self, version: int) -> Versions:
        """Return the history with `version` as the newest that a former coordinator reported (0: none).

        An empty history means that the store was lost: numbers that may have been used since that report are skipped
        too."""
        return self if self.history else self.with_observed(version + UNREPORTED)

    def current(self, step: int) -> int | None:
        """Return the version under which relays can still receive the weights after `step`.

        Relays accept rising versions only, so it is the newest of all. None if a new number is needed."""
        version = self.of_step(step)
        return version if version == self.next_version() - 1 else None

    def of_step(self, step: int) -> int | None:
        """Return the newest version of the weights after `step` that is not abandoned."""
        live = [entry.version for entry in self.history if entry.step == step and not entry.abandoned]
        return max(live, default=None)

    def step_of(self, version: int) -> int | None:
        """Return the step of a version's weights; None for an unknown version."""
        return next((entry.step for entry in self.history if entry.version == version), None)

    def is_abandoned(self, version: int) -> bool:
        """Check whether a rewind abandoned the version."""
        return any(entry.version == version and entry.abandoned for entry in self.history)


def may_start(loaded: int, missing: int, waited: bool) -> bool:
    """Return whether a round may start: all members hold its weights, or one does and the wait for the others is over.

    >>> may_start(2, 0, False), may_start(2, 1, False), may_start(2, 1, True), may_start(0, 1, True)
    (True, False, True, False)
    """
    return loaded > 0 and (not missing or waited)
