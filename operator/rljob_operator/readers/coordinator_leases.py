"""Coordinator leases: reads the Leases of all jobs. `policies.failure.coordinator_leases` decides who is silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from rljob_api.constants import COORDINATOR_LEASE_SECONDS
from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE, Json
from rljob_operator.policies.base.observation import Silence
from rljob_operator.policies.failure.coordinator_leases import ObservedLease, merged
from rljob_operator.readers.observer import MANAGED, Key, check_regularly

_logger = logging.getLogger(__name__)


class CoordinatorLeaseMonitor:
    """Monitor of coordinators that stop renewing their job's Lease: one LIST a namespace every few seconds.

    It uses the local clock only: a Lease expires when it has been observed unchanged for its duration. Time in which
    this process was paused counts as two intervals at most. After an outage of the API server every Lease counts as
    new: a coordinator that could not renew has released its job, and needs `RETURN_DURATIONS` to return. A new leader
    does not know whether an outage came before it, so that for it every Lease is new. A server that answers only after
    an interval had an outage too, as if it had refused. A namespace that cannot be listed concerns its own jobs only.

    The list comes from the server's cache, which may be stale while coordinators renew at other servers. So a Lease is
    read from etcd once it is unchanged for its duration, before its coordinator counts as silent. The first list and
    that after an outage come from etcd: in a stale one, a renewal of before the outage would show later as a new one.
    """

    def __init__(
        self,
        kube: KubeClient,
        namespaces: Sequence[str | None],
        wake: Callable[[Key], None],
        *,
        interval: float = 5.0,
        parallel: int = 16,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Take the namespaces to list, and `wake`, which marks a job.

        `parallel` bounds concurrent reads: with a stale cache all Leases look expired.
        """
        self._kube = kube
        self._namespaces = namespaces
        self._wake = wake
        self._interval = interval
        self._gate = asyncio.Semaphore(parallel)
        self._clock = clock
        self._observed: dict[Key, ObservedLease] = {}
        self._listed: dict[str | None, float] = {}
        """When each namespace was listed last."""
        self._failed: set[str | None] = set()
        """Namespaces whose last list failed."""

    def silence(self, key: Key) -> Silence | None:
        """Return the silence of a job's coordinator, if its Lease has expired."""
        lease = self._observed.get(key)
        return None if lease is None else lease.silence

    def forget(self, key: Key) -> None:
        """Forget the Lease of a job that is gone: another one may have its name."""
        self._observed.pop(key, None)

    async def run(self, stop: asyncio.Event) -> None:
        """Check every `interval` seconds until `stop`."""
        await check_regularly(self.check, self._interval, stop, "the jobs' Leases could not be listed")

    async def check(self) -> None:
        """Check all Leases once, and wake the jobs whose coordinator has just become silent.

        Raises the error of the first namespace that could not be listed, after all others were checked.
        """
        errors = []
        for namespace in self._namespaces:
            try:
                await self._check(namespace)
            except (ApiError, Unreachable) as error:
                self._failed.add(namespace)
                errors.append(error)
        if errors:
            raise errors[0]

    async def _check(self, namespace: str | None) -> None:
        listed, now, outage = await self._list(namespace)
        known = {key: lease for key, lease in self._observed.items() if namespace in (None, key[0])}
        passed = min(now - self._listed.get(namespace, now), 2 * self._interval)
        self._listed[namespace] = now
        self._failed.discard(namespace)
        before = {} if outage else known
        for key in known:
            del self._observed[key]
        self._observed |= {key: merged(before.get(key), lease, passed) for key, lease in listed.items()}
        doubtful = [key for key in listed if self._observed[key].doubtful]
        await asyncio.gather(*map(self._confirm, doubtful))
        for key in doubtful:
            if self.silence(key) is not None and not (key in before and before[key].silence is not None):
                self._wake(key)

    async def _list(self, namespace: str | None) -> tuple[dict[Key, ObservedLease], float, bool]:
        """Return the Leases of a namespace, the time of their list, and whether an outage came before it."""
        began, last = self._clock(), self._listed.get(namespace)
        listed = await self._read(namespace, cached=last is not None and namespace not in self._failed)
        now = self._clock()
        late = namespace in self._failed or now - began > self._interval
        outage = last is not None and late and now - last > 2 * self._interval
        if outage and namespace not in self._failed:
            listed = await self._read(namespace, cached=False)
        return listed, now, outage

    async def _read(self, namespace: str | None, cached: bool) -> dict[Key, ObservedLease]:
        oldest = ANY_VERSION if cached else None
        return dict(await self._kube.read(LEASE, namespace, _keyed, labels=MANAGED, not_older_than=oldest))

    async def _confirm(self, key: Key) -> None:
        """Read an unchanged Lease from etcd.

        If the read fails or takes an interval, no coordinator could renew either: the Lease counts as new once it can
        be read.
        """
        async with self._gate:
            began = self._clock()
            try:
                item = await self._kube.find(LEASE, *key)
            except (ApiError, Unreachable) as error:
                _logger.warning("%s/%s: its Lease looks expired and could not be read: %s", *key, error)
                if (known := self._observed.get(key)) is not None:
                    self._observed[key] = replace(known, confirmed=False, unread=True)
                return
        known = self._observed.get(key)
        if item is None or known is None:
            self.forget(key)
            return
        read = _observed(item)
        lease = read if known.unread or self._clock() - began > self._interval else merged(known, read, 0.0)
        self._observed[key] = replace(lease, confirmed=lease.doubtful)


def _keyed(item: Json) -> tuple[Key, ObservedLease]:
    return (item["metadata"]["namespace"], item["metadata"]["name"]), _observed(item)


def _observed(item: Json) -> ObservedLease:
    """Parse a Lease."""
    spec, version = item.get("spec") or {}, item["metadata"].get("resourceVersion") or ""
    return ObservedLease(
        int(version) if version.isdigit() else 0,
        spec.get("renewTime") or "",
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or COORDINATOR_LEASE_SECONDS),
    )
