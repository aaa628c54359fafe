"""Kubelets that have stopped to renew their node's Lease: a witness against machines that the data plane believes dead.

The node controller goes by the same Leases, and gives a kubelet 40 to 50 seconds before its node is not ready. Alone
that is as long as one has to wait. Where the coordinator hears nothing from a machine either, one missed turn will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from rljob_kube.client import Kube
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE
from rljob_operator.observer import Key, check_regularly

NAMESPACE = "kube-node-lease"
SILENT_SECONDS = 15.0
"""Kubelets renew every 10 s."""


@dataclass(frozen=True)
class _Seen:
    """What a Lease looked like, and for how long it has looked so."""

    renewed: str
    unchanged: float

    @property
    def silent(self) -> bool:
        return self.unchanged >= SILENT_SECONDS


class KubeletLeaseMonitor:
    """Of the nodes that jobs doubt, and of no others. Clocks of other machines do not enter. After any time in which we
    could not look everybody gets time to renew."""

    def __init__(
        self,
        kube: Kube,
        wake: Callable[[Key], None],
        *,
        interval: float = 5.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kube = kube
        self._wake = wake
        self._interval = interval
        self._clock = clock
        self._doubts: dict[Key, frozenset[str]] = {}
        self._seen: dict[str, _Seen] = {}
        self._looked = 0.0

    def silent(self, key: Key, doubted: Iterable[str]) -> frozenset[str]:
        """Of the nodes on which this job doubts a machine those whose kubelets are silent. It is told when there is
        another one; it doubts these, and no others, until it says otherwise."""
        nodes = frozenset(doubted)
        self._doubts.pop(key, None)
        if nodes:
            self._doubts[key] = nodes
        return frozenset(name for name in nodes if name in self._seen and self._seen[name].silent)

    async def run(self, stop: asyncio.Event) -> None:
        """Look every `interval` seconds until `stop`."""
        await check_regularly(self.look, self._interval, stop, "the nodes' Leases could not be read")

    async def look(self) -> None:
        """One look at the Leases of all nodes in doubt."""
        before, now = self._seen, self._clock()
        passed, self._looked = now - self._looked, now
        try:
            found = {name: await self._renewed(name) for name in sorted(frozenset().union(*self._doubts.values()))}
        except (ApiError, Unreachable):
            self._seen = {}
            raise
        held = before if passed <= 2 * self._interval else {}
        self._seen = {name: _after(held.get(name), when, passed) for name, when in found.items() if when is not None}
        news = {name for name, lease in self._seen.items() if lease.silent and not (name in held and held[name].silent)}
        for key in [key for key, nodes in self._doubts.items() if nodes & news]:
            self._wake(key)

    async def _renewed(self, node: str) -> str | None:
        """When its kubelet says that it has renewed its Lease; None where there is none."""
        try:
            lease = await self._kube.get(LEASE, NAMESPACE, node)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return (lease.get("spec") or {}).get("renewTime") or None


def _after(before: _Seen | None, renewed: str, passed: float) -> _Seen:
    if before is None or before.renewed != renewed:
        return _Seen(renewed, 0.0)
    return _Seen(renewed, before.unchanged + passed)
