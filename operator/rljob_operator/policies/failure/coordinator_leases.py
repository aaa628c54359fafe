"""Coordinator leases: decides when a coordinator that does not renew its job's Lease counts as silent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_operator.policies.base.observation import Silence

RETURN_DURATIONS = 3
"""Durations of a Lease in which a coordinator returns that could not renew: it starts Ray's head again first."""


@dataclass(frozen=True)
class ObservedLease:
    """Newest observed state of a Lease, and for how long it has not changed."""

    version: int
    renewed: str
    holder: str
    duration: float
    unchanged: float = 0.0
    confirmed: bool = False
    """A read from etcd shows no newer state."""
    unread: bool = False
    """It looked expired, and the read from etcd failed."""
    renewing: bool = False
    """It has been observed to change since its monitor began or an outage ended."""

    @property
    def doubtful(self) -> bool:
        """Whether it looks expired, so that it has to be read from etcd."""
        return bool(self.holder) and self.unchanged > self.duration

    @property
    def silence(self) -> Silence | None:
        """The silence of its coordinator; None while that counts as alive."""
        limit = self.duration * (1 if self.renewing else RETURN_DURATIONS)
        silent = self.doubtful and self.confirmed and self.unchanged > limit
        return Silence(self.holder, self.unchanged - limit) if silent else None


def merged(known: ObservedLease | None, read: ObservedLease, passed: float) -> ObservedLease:
    """Merge a Lease that was read again `passed` seconds later.

    A cache may show an older state than the known one.
    """
    if known is None:
        return read
    if read.version < known.version or (known.renewed, known.holder) == (read.renewed, read.holder):
        newer = max(known, read, key=lambda one: one.version)
        return replace(
            newer,
            unchanged=known.unchanged + passed,
            confirmed=known.confirmed,
            unread=known.unread,
            renewing=known.renewing,
        )
    return replace(read, renewing=True)
