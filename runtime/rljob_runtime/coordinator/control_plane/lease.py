"""The coordinator's office: a Lease of the job's name. Its transitions are the term; who cannot renew it steps down."""

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
"""Seconds, where the Lease does not say."""
RENEWALS, PATIENCES, TRIES, MOST = 3, 5, 15, 30
"""In a duration: renewals; waits for the answer to one; pauses after one that failed; renewals that are asked for."""


class LeaseLost(Exception):
    """The Lease was not renewed for its duration: another coordinator may be in office by now. Whoever hears this lets
    go of the store and of Ray's tables, and starts over: it is in office again where nobody has taken over."""


class Leases(Protocol):
    """The API server, as far as Leases go. Raises `PeerError`, `Conflict` among them."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return one object."""
        ...

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Replace it, where `manifest` has its newest resourceVersion."""
        ...


class TermLease:
    """Takes the Lease for `holder`, a pod, and keeps it. `wall` gives the time that others read in it; waiting is the
    event loop's.

    Only one coordinator pod is wanted at a time, so taking does not wait for the former holder: the operator made this
    pod because that one is to go, and the term fences it off. A later pod is never taken over from.
    """

    def __init__(self, client: Leases, namespace: str, name: str, holder: str, wall: Callable[[], datetime]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._wall = wall
        self._duration = DURATION
        self._renewed = 0.0
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Whoever wants to hear of a renewal that has not begun."""

    async def wait_for_server(self) -> None:
        """Until the API server answers. Raises `StaleTerm` where a later pod is in office."""
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
        """Hold the Lease; returns the term. Tries until it works or is cancelled. Raises `StaleTerm` where a later pod
        is in office."""
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
        """Renew until cancelled. Raises `StaleTerm` when somebody else holds it, and `LeaseLost` where nobody could be
        asked for its duration."""
        clock, period, patience = asyncio.get_running_loop().time, self._duration / RENEWALS, self._duration / PATIENCES
        pause = period
        wait: Callable[[float], Awaitable[None]] = self._until_asked
        while True:
            await wait(pause)
            self._asked.clear()
            waiting, self._waiting = self._waiting, []
            began = clock()
            left = self._renewed + self._duration - began
            try:
                # After a standstill of our own there is one try: the server knows whether anybody took over meanwhile.
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
                _tell(waiting)
                pause, wait = period, self._until_asked

    async def _until_asked(self, seconds: float) -> None:
        least = self._duration / MOST
        await asyncio.sleep(least)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self._asked.wait()

    async def confirm(self) -> None:
        """Return as soon as a renewal has succeeded that began after this call; `keep` must be under way. Where the API
        server cannot be reached, this waits until `keep` gives up and its task is cancelled."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(heard)
        self._asked.set()
        await heard

    async def _renew(self) -> None:
        lease = await self._read()
        if lease["spec"].get("holderIdentity") != self._holder:
            raise StaleTerm(f"{lease['spec'].get('holderIdentity')} holds the lease now")
        await self._client.replace(LEASE, {**lease, "spec": {**lease["spec"], "renewTime": self._timestamp()}})

    async def release(self) -> None:
        """Give it back at the end: nobody holds it. The term stays, so that the next one is higher."""
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


def _tell(waiting: Iterable[asyncio.Future[None]]) -> None:
    for heard in waiting:
        if not heard.done():
            heard.set_result(None)


def is_later(holder: str, pod: str) -> bool:
    """Whether `holder` is a later incarnation of the machine that `pod` is one of.

    >>> is_later("demo-coordinator-0-10", "demo-coordinator-0-9"), is_later("demo-coordinator-0-9", "somebody")
    (True, False)
    """
    other, own = (re.fullmatch(r"(.*)-(\d+)", name) for name in (holder, pod))
    return other is not None and own is not None and other[1] == own[1] and int(other[2]) > int(own[2])
