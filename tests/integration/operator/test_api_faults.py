"""What goes wrong between the operator and the API server: refusals, overload, cut watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.leader_election import LeadershipLost
from rljob_operator.app import Operator, serve
from rljob_operator.policies.base.observation import Silence
from tests.support.operator.harness import FaultyKube, Server, condition, options, running, until
from tests.support.operator.process_lives import FIRST, expect_first_pods, process, settle, show_pods

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


FAULTS = {
    "conflict": ApiError(409, "Conflict", "the object has been modified"),
    "overload": ApiError(429, "TooManyRequests", "slow down", retry_after=0.05),
    "internal": ApiError(500, "InternalError", "etcdserver: request timed out"),
    "unavailable": ApiError(503, "ServiceUnavailable", "apiserver is shutting down"),
    "reset": ConnectionResetError("connection reset by peer"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_third_request_fails(connection: Connection, server: Server, fault: str) -> None:
    def sometimes(number: int, method: str, path: str) -> None:
        conflict_of_writes_only = fault == "conflict" and not (method == "PATCH" and path.endswith("/status"))
        if number % 3 == 1 and not conflict_of_writes_only:
            raise FAULTS[fault]

    async with running(connection, options(server.namespace), _faulty(sometimes)):
        await server.apply_job("j")
        await server.until_pods(FIRST, "j", seconds=60)
        await server.start_all("j")
        await server.until(lambda j: condition(j, "Ready") == "True/RoundsProgressing", "j", seconds=60)
        await server.kill_pod("j-rollout-1-1")
        await server.until_pods(FIRST - {"j-rollout-1-1"} | {"j-rollout-1-2"}, "j", seconds=60)


def _faulty(before: Callable[[int, str, str], None]) -> Callable[..., FaultyKube]:
    def make(credentials: Credentials, **counted: Any) -> FaultyKube:
        kube = FaultyKube(credentials, **counted)
        kube.before = before  # type: ignore[method-assign]
        return kube

    return make


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError(403, "Forbidden", "exceeded quota: q, requested: pods=1"), "QuotaExceeded"),
        (ApiError(403, "Forbidden", "violates PodSecurity restricted"), "PodForbidden"),
        (ApiError(422, "Invalid", "spec.containers[0].image: Required value"), "PodInvalid"),
    ],
)
async def test_pods_that_the_server_refuses(
    connection: Connection, server: Server, error: ApiError, reason: str
) -> None:
    key = (server.namespace, "j")
    await server.apply_job("j")
    async with process(connection, server.namespace) as (kube, reconcile):

        def refuse(number: int, method: str, path: str) -> None:
            if method == "POST" and path.endswith("/pods"):
                raise error

        kube.before = refuse  # type: ignore[method-assign]
        again = await reconcile(key, 0.0)
        assert again is not None
        assert again <= 15
        job = await server.job("j")
        assert condition(job, "Stalled") == f"True/{reason}"
        assert job["status"].get("incarnations", {}) == {}  # the numbers stay free
        await settle(reconcile, key, rounds=2)
        assert (await server.job("j"))["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]
        kube.before = lambda number, method, path: None  # type: ignore[method-assign]
        await settle(reconcile, key, rounds=2)
    await expect_first_pods(server, "j")
    assert condition(await server.job("j"), "Stalled") is None


@pytest.mark.parametrize("knows", [True, False])
async def test_the_address_of_a_coordinator_that_was_not_made_is_repaired(
    connection: Connection, server: Server, knows: bool
) -> None:
    """It could not renew its Lease, and its successor's address was written; then the server did not answer, and when
    it did the Lease was fresh again. By the same process, or by one that knows nothing."""

    async def selected() -> str:
        path = f"/api/v1/namespaces/{server.namespace}/services/j-coordinator"
        service = await server.kube._send("GET", path, None, {}, {})
        return str(service["spec"]["selector"]["rljob.dev/incarnation"])

    key = (server.namespace, "j")
    await server.apply_job("j")
    async with contextlib.AsyncExitStack() as lives:
        kube, reconcile = await lives.enter_async_context(process(connection, server.namespace))
        await settle(reconcile, key)
        await server.start_all("j")
        await show_pods(server, reconcile, "j")
        await settle(reconcile, key)

        def away(number: int, method: str, path: str) -> None:
            if method == "POST" and path.endswith("/pods"):
                raise Unreachable("the server does not answer")

        observer = reconcile._observer
        sources = observer._sources
        observer._sources = replace(sources, silence=lambda key: Silence("j-coordinator-0-1_x", 3.0))
        kube.before = away  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await reconcile(key, 0.0)
        assert await selected() == "2"
        observer._sources = sources
        kube.before = lambda number, method, path: None  # type: ignore[method-assign]
        if not knows:
            _, reconcile = await lives.enter_async_context(process(connection, server.namespace))
        await settle(reconcile, key, rounds=2)
        assert await selected() == "1"
    await expect_first_pods(server, "j")


async def test_an_api_server_that_never_answers_is_given_up_in_time(connection: Connection, server: Server) -> None:
    async with process(connection, server.namespace) as (kube, reconcile):

        def reset(number: int, method: str, path: str) -> None:
            raise ConnectionResetError("gone")

        kube.before = reset  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await reconcile((server.namespace, "j"), 0.0)
        assert len(kube.sent) == 3


class Cable:
    """A TCP proxy in front of the API server, whose connections can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def plugged(self) -> AsyncIterator[Cable]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> int:
        """End every connection without a word; returns how many there were."""
        count = len(self._writers)
        for writer in self._writers:
            writer.transport.abort()
        return count

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= pair


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def test_watches_that_are_cut_come_back(connection: Connection, server: Server) -> None:
    address = urlsplit(connection.server)
    assert address.hostname is not None
    assert address.port is not None
    async with Cable(address.hostname, address.port).plugged() as cable:
        through = replace(connection, server=f"https://127.0.0.1:{cable.port}")
        async with running(through, options(server.namespace)):
            await server.apply_job("j")
            await server.until_members(FIRST, "j")
            for incarnation in (2, 3):
                assert cable.cut() > 0
                await server.kill_pod(f"j-rollout-0-{incarnation - 1}")
                wanted = FIRST - {"j-rollout-0-1"} | {f"j-rollout-0-{incarnation}"}
                await server.until_members(wanted, "j")


async def test_two_replicas_one_leader(connection: Connection, server: Server) -> None:
    def replica(identity: str) -> Any:
        return options(server.namespace, leader_elect=True, identity=identity)

    first = running(connection, replica("one"))
    one = await first.__aenter__()
    await asyncio.wait_for(one.ready.wait(), 30)
    async with running(connection, replica("two")) as two:
        await server.apply_job("j")
        await server.until_members(FIRST, "j")
        assert two.health.standby
        assert not two.ready.is_set()
        await first.__aexit__(None, None, None)  # gives the Lease back
        await asyncio.wait_for(two.ready.wait(), 30)
        await server.kill_pod("j-trainer-0-1")
        await server.until_pods(FIRST - {"j-trainer-0-1"} | {"j-trainer-0-2"}, "j")


async def test_a_leader_that_cannot_renew_ends(connection: Connection, server: Server) -> None:
    cut = False

    def unplugged(number: int, method: str, path: str) -> None:
        if cut and "/leases/" in path:
            raise ConnectionResetError("cut")

    async def live_until_cut_off() -> None:
        nonlocal cut
        found = options(server.namespace, leader_elect=True, identity="one", leader_lease_seconds=9.0)
        async with running(connection, found, _faulty(unplugged)) as operator:
            await asyncio.wait_for(operator.ready.wait(), 30)
            cut = True

            async def stopped() -> bool:
                return bool(operator.health.standby)

            await until(stopped, 60)

    with pytest.raises(LeadershipLost):
        await live_until_cut_off()


async def test_a_leader_that_could_not_renew_leads_again_in_the_same_process(
    connection: Connection, server: Server
) -> None:
    """With nothing left of what it knew; the kubelet would start a process that ended ever later."""
    cut = False

    def unplugged(number: int, method: str, path: str) -> None:
        if cut:
            raise ConnectionResetError("cut")

    found = options(server.namespace, leader_elect=True, identity="one", leader_lease_seconds=9.0)
    made: list[Operator] = []

    def make() -> Operator:
        made.append(Operator(found, connection=connection, make_kube=_faulty(unplugged)))
        return made[-1]

    async def second() -> bool:
        return len(made) == 2

    stop = asyncio.Event()
    serving = asyncio.create_task(serve(make, stop))
    try:
        await asyncio.sleep(0.0)
        await asyncio.wait_for(made[0].ready.wait(), 30)
        await server.apply_job("j")
        await server.until_members(FIRST, "j")
        cut = True
        await until(second, 60)
        assert made[1].health.standby
        await server.kill_pod("j-trainer-0-1")
        cut = False
        await asyncio.wait_for(made[1].ready.wait(), 30)
        await server.until_pods(FIRST - {"j-trainer-0-1"} | {"j-trainer-0-2"}, "j")
        assert len(made) == 2
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)
