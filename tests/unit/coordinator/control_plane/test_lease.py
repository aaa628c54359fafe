"""The Lease: who cannot renew it lets go in time, wherever the trouble is; who can is left alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from rljob_kube.resources import Resource
from rljob_runtime.coordinator.control_plane.lease import LeaseLost, TermLease, is_later
from rljob_runtime.coordinator.control_plane.pod_client import Conflict
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.protocols import PeerTimeout, StaleTerm
from rljob_runtime.simulator.core import virtual_time

FIRST, SECOND = "demo-coordinator-0-1", "demo-coordinator-0-2"


class Server:
    """One Lease of 15 s. `broken`: what a call does; None: it answers."""

    def __init__(self, holder: str = "", broken: str | None = None) -> None:
        self.lease: dict[str, Any] = {"spec": {"leaseDurationSeconds": 15, "holderIdentity": holder}, "version": 0}
        self.broken = broken
        self.renewals: list[float] = []

    async def _travel(self) -> None:
        if self.broken == "silent":
            await asyncio.sleep(15.0)  # as long as the client waits
        if self.broken:
            raise PeerTimeout(f"the API server is {self.broken}")

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        await self._travel()
        return {**self.lease, "spec": dict(self.lease["spec"])}

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._travel()
        if manifest["version"] != self.lease["version"]:
            raise Conflict("409")
        self.lease = {**manifest, "version": self.lease["version"] + 1}
        self.renewals.append(asyncio.get_running_loop().time())
        return self.lease


def lease_of(server: Server, holder: str = FIRST) -> TermLease:
    return TermLease(server, "ns", "demo", holder, lambda: datetime(2026, 1, 2, tzinfo=UTC))


async def let_go_after(server: Server, lease: TermLease, broken: str | None) -> float:
    """Seconds from the last renewal until the coordinator lets go, where the server is `broken` after a while."""
    await lease.take()
    keeping = asyncio.create_task(lease.keep())
    await asyncio.sleep(23.0)
    assert not keeping.done()
    server.broken = broken
    with pytest.raises(LeaseLost, match="not renewed for 15 s"):
        await asyncio.wait_for(keeping, 60)
    return asyncio.get_running_loop().time() - server.renewals[-1]


@pytest.mark.parametrize("broken", ["silent", "refusing"])
def test_who_cannot_renew_for_the_duration_lets_go(broken):
    seconds = virtual_time.run(let_go_after(server := Server(), lease_of(server), broken))
    # The operator makes another one when it has seen the Lease unchanged for as long.
    assert 14.0 <= seconds <= 15.0


def test_a_server_that_comes_back_in_time_costs_nothing():
    async def program() -> None:
        lease = lease_of(server := Server())
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        for _ in range(5):
            server.broken = "silent"
            await asyncio.sleep(5.5)
            server.broken = None
            await asyncio.sleep(8.3)
            assert not keeping.done()
        keeping.cancel()

    virtual_time.run(program())


def test_after_a_standstill_of_its_own_the_server_is_asked_once():
    """A process that stood still, with no other in its place meanwhile, continues."""

    async def program(successor: str | None) -> None:
        loop = asyncio.get_running_loop()
        lease = lease_of(server := Server())
        await lease.take()
        lease._renewed = loop.time() - 100.0
        if successor:
            await lease_of(server, successor).take()
        keeping = asyncio.create_task(lease.keep())
        await asyncio.sleep(20.0)
        if successor is None:
            assert not keeping.done()
            keeping.cancel()
        else:
            with pytest.raises(StaleTerm, match=f"{successor} holds the lease"):
                await keeping

    virtual_time.run(program(None))
    virtual_time.run(program(SECOND))


def test_a_later_pod_is_never_taken_over_from():
    async def program() -> None:
        first = lease_of(server := Server())
        assert await first.take() == 1
        assert await lease_of(server, SECOND).take() == 2
        for ask in (first.take, first.wait_for_server):
            with pytest.raises(StaleTerm, match=f"{SECOND} holds the lease, a later pod"):
                await ask()
        assert server.lease["spec"]["holderIdentity"] == SECOND
        assert await lease_of(server, SECOND).take() == 2, "it starts over in its pod"

    virtual_time.run(program())


def test_who_starts_over_waits_for_the_server():
    async def program() -> None:
        lease = lease_of(server := Server(holder=FIRST, broken="refusing"))
        waiting = asyncio.create_task(lease.wait_for_server())
        await asyncio.sleep(1000.0)
        assert not waiting.done()
        server.broken = None
        await asyncio.wait_for(waiting, 5.0)

    virtual_time.run(program())


@pytest.mark.parametrize(
    ("holder", "pod", "later"),
    [
        (SECOND, FIRST, True),
        (FIRST, SECOND, False),
        (FIRST, FIRST, False),
        ("demo-coordinator-0-10", "demo-coordinator-0-9", True),
        ("other-coordinator-0-2", FIRST, False),
        ("", FIRST, False),
        ("coordinator", FIRST, False),
    ],
)
def test_which_pod_is_later(holder, pod, later):
    assert is_later(holder, pod) is later


def test_what_is_needed_ends_the_work():
    async def program() -> list[str]:
        told = []

        async def work() -> int:
            try:
                await asyncio.sleep(100.0)
            finally:
                told.append("the work was ended first")
            return 0

        async def needed() -> None:
            await asyncio.sleep(1.0)
            raise LeaseLost("gone")

        with pytest.raises(LeaseLost):
            await alongside(work(), needed())
        return told

    assert virtual_time.run(program()) == ["the work was ended first"]


def test_a_term_is_confirmed_by_a_renewal_that_began_later():
    """Immediately where the server answers, for all who wait together; not at all where it does not."""

    async def program() -> None:
        clock_ = asyncio.get_running_loop().time
        lease = lease_of(server := Server())
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        await asyncio.sleep(1.0)
        taken, asked = len(server.renewals), clock_()
        await asyncio.gather(*(lease.confirm() for _ in range(500)))
        assert len(server.renewals) == taken + 1, "one for all"
        assert clock_() - asked < 0.1

        server.broken = "refusing"
        confirming = asyncio.create_task(lease.confirm())
        await asyncio.sleep(4.0)
        server.broken = None
        assert not confirming.done()
        asked = clock_()
        await confirming
        assert asked <= server.renewals[-1] <= asked + 1.0

        gives_up, stays = asyncio.create_task(lease.confirm()), asyncio.create_task(lease.confirm())
        gives_up.cancel()
        await stays
        server.broken = "silent"
        hopeless = asyncio.create_task(lease.confirm())
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(keeping, 60)
        assert not hopeless.done()
        hopeless.cancel()

    virtual_time.run(program())


def test_many_who_ask_in_turn_cause_a_few_renewals():
    """Machines that have not joined are tried again and again, each by itself."""

    async def program() -> None:
        lease = lease_of(server := Server())
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        taken = len(server.renewals)
        for _ in range(3000):
            asking = asyncio.create_task(lease.confirm())
            await asyncio.sleep(0.01)
            asking.add_done_callback(lambda done: done.result())
        assert len(server.renewals) - taken <= 30.0 / 0.5
        keeping.cancel()

    virtual_time.run(program())


def test_a_renewal_under_way_confirms_nothing():
    """The server may have answered it before the client was cut off."""

    async def program() -> None:
        lease = lease_of(server := Server())
        await lease.take()
        replace = server.replace

        async def slow(resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(1.0)
            return await replace(resource, manifest)

        server.replace = slow  # type: ignore[method-assign]
        keeping = asyncio.create_task(lease.keep())
        await asyncio.sleep(5.5)  # in the middle of a renewal
        asked = asyncio.get_running_loop().time()
        await lease.confirm()
        assert asyncio.get_running_loop().time() - asked >= 1.5
        keeping.cancel()

    virtual_time.run(program())
