"""Kubelet Lease monitor: a kubelet that stops renewing its node's Lease is a witness against the machines on that node.

The node controller reads the same Leases, but waits 40 to 50 seconds before a node is not ready. Where the coordinator
suspects a machine too, one missed renewal is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE
from rljob_operator.policies.base.periods import is_silent
from rljob_operator.readers.observer import Key, check_regularly

NAMESPACE = "kube-node-lease"


@dataclass(frozen=True)
class _ObservedLease:
    """Renewal time of a Lease, and for how long it has not changed."""

    renewed: str
    unchanged: float

    @property
    def silent(self) -> bool:
        return is_silent(self.unchanged)


class KubeletLeaseMonitor:
    """Monitor of the Leases of suspected nodes.

    It uses the local clock only. After an outage of the monitor, every node gets a full renewal period.
    """

    def __init__(
        self,
        kube: KubeClient,
        wake: Callable[[Key], None],
        *,
        interval: float = 5.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kube = kube
        self._wake = wake
        self._interval = interval
        self._clock = clock
        self._suspected: dict[Key, frozenset[str]] = {}
        self._observed: dict[str, _ObservedLease] = {}
        self._checked_at = 0.0

    def silent(self, key: Key, suspected: Iterable[str]) -> frozenset[str]:
        """Set the nodes that a job suspects, and return those with silent kubelets.

        The job is woken when another one falls silent. The set holds until the next call.
        """
        nodes = frozenset(suspected)
        self._suspected.pop(key, None)
        if nodes:
            self._suspected[key] = nodes
        return frozenset(name for name in nodes if name in self._observed and self._observed[name].silent)

    async def run(self, stop: asyncio.Event) -> None:
        """Check every `interval` seconds until `stop`."""
        await check_regularly(self.check, self._interval, stop, "the nodes' Leases could not be read")

    async def check(self) -> None:
        """Read the Leases of all suspected nodes once."""
        before, now = self._observed, self._clock()
        passed, self._checked_at = now - self._checked_at, now
        try:
            found = {name: await self._renewed(name) for name in sorted(frozenset().union(*self._suspected.values()))}
        except (ApiError, Unreachable):
            self._observed = {}
            raise
        held = before if passed <= 2 * self._interval else {}
        self._observed = {
            name: _merged(held.get(name), when, passed) for name, when in found.items() if when is not None
        }
        news = {
            name for name, lease in self._observed.items() if lease.silent and not (name in held and held[name].silent)
        }
        for key in [key for key, nodes in self._suspected.items() if nodes & news]:
            self._wake(key)

    async def _renewed(self, node: str) -> str | None:
        """Return the renewal time in a node's Lease; None without one."""
        try:
            lease = await self._kube.get(LEASE, NAMESPACE, node)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return (lease.get("spec") or {}).get("renewTime") or None


def _merged(before: _ObservedLease | None, renewed: str, passed: float) -> _ObservedLease:
    if before is None or before.renewed != renewed:
        return _ObservedLease(renewed, 0.0)
    return _ObservedLease(renewed, before.unchanged + passed)
