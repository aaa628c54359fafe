"""Leader election by a Lease: one of several replicas acts, and stops when it is not sure to lead.

Clocks of other machines are not compared with the local one. A Lease is expired when this process has seen it unchanged
for its duration, by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Self

from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.manifests.objects import HeldLease, HeldLeaseSpec
from rljob_kube.resources import LEASE, Json

_logger = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """Another replica may lead: this process may write no more."""


@dataclass(frozen=True)
class ElectionTimes:
    """Times of an election, in seconds. Raises `ValueError` unless `retry` < `deadline` < `duration`.

    Another replica may take the Lease `duration` seconds after the last renewal. The leader stops `deadline` seconds
    after that renewal, and renews every `retry` seconds.
    """

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.retry < self.deadline < self.duration:
            raise ValueError(f"retry {self.retry} < deadline {self.deadline} < duration {self.duration} must hold")

    @classmethod
    def lasting(cls, duration: float) -> Self:
        """Return times in the proportions of Kubernetes' components: 15, 10 and 2 seconds."""
        return cls(duration, duration * 2 / 3, duration * 2 / 15)


class LeaderElector:
    """This process's claim on the Lease `namespace/name`."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        times: ElectionTimes = ElectionTimes(),  # noqa: B008 (frozen)
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._times = times
        self._clock = clock
        self._renewed: float | None = None
        self._seen: tuple[str, float] | None = None  # (resourceVersion, when it was first seen)

    @property
    def leading(self) -> bool:
        """Whether this process is sure to lead now."""
        return self._renewed is not None and self._clock() - self._renewed < self._times.deadline

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait until this process leads (True), or until `stop` (False)."""
        while not stop.is_set():
            if await self._attempt():
                _logger.info("%s leads", self.identity)
                return True
            await _sleep(self._times.retry, stop)
        return False

    async def hold(self, stop: asyncio.Event) -> None:
        """Renew until `stop`, then release the Lease. Raises `LeadershipLost`."""
        while not stop.is_set():
            await _sleep(self._times.retry, stop)
            if stop.is_set():
                break
            await self._attempt()
            if not self.leading:
                raise LeadershipLost(f"{self.identity}: the Lease could not be renewed for {self._times.deadline} s")
        await self.release()

    async def confirm(self) -> None:
        """Ensure a renewal that is at most `retry` old; call it before a destructive act. Raises `LeadershipLost`."""
        if self._renewed is not None and self._clock() - self._renewed < self._times.retry:
            return
        if not await self._attempt() and not self.leading:
            raise LeadershipLost(f"{self.identity}: no longer the leader")

    async def release(self) -> None:
        """Release the Lease, so that another replica may take it immediately."""
        if not self.leading:
            return
        self._renewed = None
        try:
            lease = await self._kube.get(LEASE, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self._kube.replace(LEASE, lease)
        except (ApiError, Unreachable) as error:
            _logger.info("the Lease was not released; it will expire: %s", error)

    async def _attempt(self) -> bool:
        """Take or renew the Lease where this process holds it or it is free. Return whether that succeeded."""
        began = self._clock()
        try:
            try:
                lease = await self._kube.get(LEASE, self._namespace, self._name)
            except ApiError as error:
                if not error.not_found:
                    raise
                await self._kube.create(LEASE, self._claim(None))
            else:
                if not self._may_take(lease):
                    self._renewed = None
                    return False
                await self._kube.replace(LEASE, self._claim(lease))
        except (ApiError, Unreachable) as error:
            _logger.info("the leader's Lease: %s", error)
            return False
        self._renewed = began
        return True

    def _may_take(self, lease: Json) -> bool:
        holder = lease["spec"].get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        duration = float(lease["spec"].get("leaseDurationSeconds") or self._times.duration)
        return holder in ("", self.identity) or self._clock() - self._seen[1] >= duration

    def _claim(self, lease: Json | None) -> Mapping[str, object]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease["spec"] if lease is not None else {}
        changed = old.get("holderIdentity") != self.identity
        spec: HeldLeaseSpec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._times.duration),
            "acquireTime": now if changed else old.get("acquireTime"),
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if changed and lease is not None else 0),
        }
        if lease is not None:
            return {**lease, "spec": spec}
        held: HeldLease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return held


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    """Wait `seconds`, or until `stop`."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
