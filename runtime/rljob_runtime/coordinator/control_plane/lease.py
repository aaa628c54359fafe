"""Lease: the coordinator's right to act. Its transitions are the term; a coordinator that cannot renew it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Protocol

from rljob_api.constants import COORDINATOR_LEASE_SECONDS
from rljob_kube.resources import LEASE, Resource
from rljob_runtime.coordinator.control_plane.pod_client import Conflict
from rljob_runtime.protocols import PeerError, StaleTerm

log = logging.getLogger(__name__)

DURATION = float(COORDINATOR_LEASE_SECONDS)
"""Seconds, if the Lease does not say."""
RENEWALS, PATIENCES, TRIES, MOST = 3, 5, 15, 30
"""Fractions of the duration: between renewals; timeout of one; pause after a failed one; between requested ones."""


class LeaseLost(Exception):
    """The Lease was not renewed for its duration, so that another coordinator may hold it.

    The coordinator closes the store, disconnects from Ray, and starts again. It gets the Lease back if no other
    coordinator has taken it.
    """


class Leases(Protocol):
    """Reads and writes Leases at the API server. Raises `PeerError`, e.g. `Conflict`."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return one object."""
        ...

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Replace it, where `manifest` has its newest resourceVersion."""
        ...


class TermLease:
    """Takes the Lease for the pod `holder`, and renews it. `wall` returns the time that is written into it.

    It does not wait for the former holder: the operator made this pod to replace it, and the term fences it. The Lease
    of a later pod is never taken.
    """

    def __init__(self, client: Leases, namespace: str, name: str, holder: str, wall: Callable[[], datetime]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._wall = wall
        self._duration = DURATION
        self._renewed = 0.0
        self._requested = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait for a renewal that has not begun."""

    async def wait_for_server(self) -> None:
        """Wait until the API server answers. Raises `StaleTerm` if a later pod holds the Lease."""
        while True:
            try:
                self._check(await self._read())
                return
            except StaleTerm:
                raise
            except PeerError as error:
                log.warning("the lease cannot be read yet: %s", error)
                await asyncio.sleep(self._duration / 5)

    async def take(self) -> int:
        """Take the Lease; return the term. Tries until cancelled. Raises `StaleTerm` if a later pod holds it."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                lease = await self._read()
                self._check(lease)
                spec = lease.get("spec") or {}
                self._duration = float(spec.get("leaseDurationSeconds") or DURATION)
                now = self._timestamp()
                if spec.get("holderIdentity") != self._holder:
                    spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
                    spec["acquireTime"] = now
                spec.update(holderIdentity=self._holder, renewTime=now)
                taken = await self._client.replace(LEASE, {**lease, "spec": spec})
            except Conflict:
                continue
            except StaleTerm:
                raise
            except PeerError as error:
                log.warning("the lease cannot be taken yet: %s", error)
                await asyncio.sleep(self._duration / 5)
            else:
                self._renewed = began
                return int(taken["spec"]["leaseTransitions"])

    async def keep(self) -> None:
        """Renew until cancelled.

        Raises `StaleTerm` if another pod holds it, and `LeaseLost` if no renewal succeeds for its duration.
        """
        clock, period, patience = asyncio.get_running_loop().time, self._duration / RENEWALS, self._duration / PATIENCES
        pause = period
        wait: Callable[[float], Awaitable[None]] = self._until_requested
        while True:
            await wait(pause)
            self._requested.clear()
            waiting, self._waiting = self._waiting, []
            began = clock()
            left = self._renewed + self._duration - began
            try:
                # After a pause of this process there is one try: another pod may have taken the Lease, or not.
                async with asyncio.timeout(min(left, patience) if left > 0 else patience):
                    await self._renew()
            except StaleTerm:
                raise
            except (PeerError, TimeoutError) as error:
                log.warning("the lease was not renewed: %s", error or "no answer")
                self._waiting += waiting
                left = self._renewed + self._duration - clock()
                if left <= 0:
                    raise LeaseLost(f"the Lease was not renewed for {self._duration:g} s") from error
                pause, wait = min(self._duration / TRIES, left), asyncio.sleep
            else:
                self._renewed = began
                _notify(waiting)
                pause, wait = period, self._until_requested

    async def _until_requested(self, seconds: float) -> None:
        least = self._duration / MOST
        await asyncio.sleep(least)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self._requested.wait()

    async def confirm(self) -> None:
        """Wait for a renewal that begins after this call; `keep` must be running.

        While the API server is unreachable, this waits until `keep` fails and the task is cancelled.
        """
        renewed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(renewed)
        self._requested.set()
        await renewed

    async def _renew(self) -> None:
        lease = await self._read()
        if lease["spec"].get("holderIdentity") != self._holder:
            raise StaleTerm(f"{lease['spec'].get('holderIdentity')} holds the lease now")
        await self._client.replace(LEASE, {**lease, "spec": {**lease["spec"], "renewTime": self._timestamp()}})

    async def release(self) -> None:
        """Give the Lease back. The term stays, so that the next one is higher."""
        try:
            lease = await self._read()
            if lease["spec"].get("holderIdentity") == self._holder:
                spec = {key: value for key, value in lease["spec"].items() if key != "holderIdentity"}
                await self._client.replace(LEASE, {**lease, "spec": {**spec, "renewTime": self._timestamp()}})
        except PeerError as error:
            log.warning("the lease was not released, it expires: %s", error)

    async def _read(self) -> dict[str, Any]:
        return await self._client.get(LEASE, self._namespace, self._name)

    def _check(self, lease: dict[str, Any]) -> None:
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        if is_later(holder, self._holder):
            raise StaleTerm(f"{holder} holds the lease, a later pod than {self._holder}")

    def _timestamp(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _notify(waiting: Iterable[asyncio.Future[None]]) -> None:
    for renewed in waiting:
        if not renewed.done():
            renewed.set_result(None)


def is_later(holder: str, pod: str) -> bool:
    """Return whether `holder` is a later incarnation of the same machine as `pod`.

    >>> is_later("demo-coordinator-0-10", "demo-coordinator-0-9"), is_later("demo-coordinator-0-9", "another")
    (True, False)
    """
    other, own = (re.fullmatch(r"(.*)-(\d+)", name) for name in (holder, pod))
    return other is not None and own is not None and other[1] == own[1] and int(other[2]) > int(own[2])
