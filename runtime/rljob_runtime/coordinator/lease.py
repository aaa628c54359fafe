"""The coordinator's office: a Lease of the job's name. Its transitions are the term; who cannot renew it steps down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rljob_runtime.coordinator.api_client import ApiClient, Conflict
from rljob_runtime.coordinator.protocols import PeerError, StaleTerm

log = logging.getLogger(__name__)

DURATION = 15.0
"""Seconds, where the Lease does not say."""


class TermLease:
    """Takes the Lease for `holder` and keeps it. `wall` gives the time that others read in it; waiting is the event
    loop's.

    A coordinator pod has a name of its own and only one is wanted at a time, so taking does not wait for the former
    holder: the operator made this pod because that one is to go, and the term fences it off.
    """

    def __init__(self, client: ApiClient, namespace: str, name: str, holder: str, wall: Callable[[], datetime]) -> None:
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self._holder = holder
        self._wall = wall
        self._duration = DURATION

    async def take(self) -> int:
        """Hold the Lease; returns the term. Tries until it works or is cancelled."""
        while True:
            try:
                lease = await self._client.get(self._path)
                spec = lease.get("spec") or {}
                self._duration = float(spec.get("leaseDurationSeconds") or DURATION)
                now = self._timestamp()
                if spec.get("holderIdentity") != self._holder:
                    spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
                    spec["acquireTime"] = now
                spec.update(holderIdentity=self._holder, renewTime=now)
                taken = await self._client.put(self._path, {**lease, "spec": spec})
                return int(taken["spec"]["leaseTransitions"])
            except Conflict:
                continue
            except PeerError as error:
                log.warning("the lease cannot be taken yet: %s", error)
                await asyncio.sleep(self._duration / 5)

    async def keep(self) -> None:
        """Renew until cancelled. Raises `StaleTerm` when somebody else holds it; an API server that cannot be reached
        is no reason to stop, for nobody else can take office then either."""
        while True:
            await asyncio.sleep(self._duration / 3)
            try:
                lease = await self._client.get(self._path)
                if lease["spec"].get("holderIdentity") != self._holder:
                    raise StaleTerm(f"{lease['spec'].get('holderIdentity')} holds the lease now")
                spec: dict[str, Any] = {**lease["spec"], "renewTime": self._timestamp()}
                await self._client.put(self._path, {**lease, "spec": spec})
            except StaleTerm:
                raise
            except PeerError as error:
                log.warning("the lease was not renewed: %s", error)

    async def release(self) -> None:
        """Give it back at the end: nobody holds it. The term stays, so that the next one is higher."""
        try:
            lease = await self._client.get(self._path)
            if lease["spec"].get("holderIdentity") == self._holder:
                spec = {key: value for key, value in lease["spec"].items() if key != "holderIdentity"}
                await self._client.put(self._path, {**lease, "spec": {**spec, "renewTime": self._timestamp()}})
        except PeerError as error:
            log.warning("the lease was not released, it expires: %s", error)

    def _timestamp(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
