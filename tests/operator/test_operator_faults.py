"""What goes wrong between the operator and the API server: death between any two calls, refusals, overload, cut
watches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import kopf
import pytest
from operator_kit import (
    Died,
    FaultyKube,
    Server,
    condition,
    options,
    running,
    until,
)

from rljob_operator.act import Actor
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.errors import ApiError, Unreachable
from rljob_operator.kube.leader import LeadershipLost
from rljob_operator.kube.recorder import Recorder
from rljob_operator.metrics import Metrics
from rljob_operator.nodes import NodeBook
from rljob_operator.observe import LeaseMonitor, Observer, PodLister
from rljob_operator.operator import Operator, serve
from rljob_operator.policies.config import Config
from rljob_operator.policies.observed import Silence
from rljob_operator.reconcile import Reconciler

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONFIG = Config(runtime_image="example/runtime:1")
FIRST = {"j-coordinator-0-1", "j-trainer-0-1", "j-rollout-0-1", "j-rollout-1-1"}


@contextlib.asynccontextmanager
async def process(connection: kopf.ConnectionInfo, namespace: str) -> AsyncIterator[tuple[FaultyKube, Reconciler]]:
    """What one life of the operator knows, without the watches: a client and a reconciler with empty memories."""
    metrics = Metrics()
    kube = FaultyKube(Credentials(connection), metrics, attempts=3)
    async with kube.opened():
        pods = PodLister(kube)
        await pods.prime([namespace])
        observer = Observer(pods, LeaseMonitor(kube, [namespace], lambda key: None), NodeBook(kube).facts)
        recorder = Recorder(kube)

        async def leading() -> None:
            return

        actor = Actor(kube, recorder, metrics, leading, pods.saw, parallel=1)
        kube.sent.clear()
        yield kube, Reconciler(kube, observer, actor, recorder, metrics, CONFIG)


async def settle(reconcile: Reconciler, key: tuple[str, str], rounds: int = 4) -> None:
    """Reconcile until nothing is written any more."""
    for _ in range(rounds):
        await reconcile(key, 0.0)


async def dies(connection: kopf.ConnectionInfo, key: tuple[str, str], call: int, answered: bool) -> bool:
    """Reconcile in a process that is killed at its `call`-th request, before it is sent or after it was carried out.
    False when it came to its end before that."""

    def kill(number: int, method: str, path: str) -> None:
        if number == call:
            raise Died

    async with process(connection, key[0]) as (kube, reconcile):
        setattr(kube, "after" if answered else "before", kill)
        try:
            await settle(reconcile, key, rounds=2)
        except Died:
            return True
    return False


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
async def test_the_operator_may_die_at_any_call(
    connection: kopf.ConnectionInfo, server: Server, answered: bool
) -> None:
    """For each request that a creation and a replacement need: the process dies there, another goes on, and the end is
    the same: each machine once, each loss counted once, no name twice."""
    calls = 0
    for call in itertools.count():
        name = f"k{call}"
        key = (server.namespace, name)
        await server.apply_job(name)
        died = await dies(connection, key, call, answered)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await _expect_first_pods(server, name)
        await server.start_all(name)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await server.fail_pod(f"{name}-trainer-0-1")
        died_again = await dies(connection, key, call, answered)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await _expect_one_replacement(server, name)
        calls = call
        if not died and not died_again:
            break
    assert calls > 15, "the faults hit too few calls to mean anything"


async def _expect_first_pods(server: Server, name: str) -> None:
    assert set(await server.pods(name)) == {pod.replace("j-", f"{name}-", 1) for pod in FIRST}
    status = (await server.job(name))["status"]
    assert status["incarnations"] == {"coordinator-0": 1, "trainer-0": 1, "rollout-0": 1, "rollout-1": 1}
    assert status["replacements"]["total"] == 0


async def _expect_one_replacement(server: Server, name: str) -> None:
    pods = await server.pods(name)
    live = {pod for pod, item in pods.items() if item["status"]["phase"] != "Failed"}
    wanted = {pod.replace("j-", f"{name}-", 1) for pod in FIRST} - {f"{name}-trainer-0-1"} | {f"{name}-trainer-0-2"}
    assert live == wanted
    status = (await server.job(name))["status"]
    assert status["replacements"]["total"] == 1
    assert status["replacements"]["byMachine"] == {"trainer-0": 1}
    assert {m["machine"]: m["incarnation"] for m in status["members"]}["trainer-0"] == 2


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
async def test_the_operator_may_die_at_any_call_of_scaling_suspension_and_end(
    connection: kopf.ConnectionInfo, server: Server, answered: bool
) -> None:
    for call in itertools.count():
        name = f"s{call}"
        key = (server.namespace, name)
        await server.apply_job(name)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key, rounds=2)
        died = False
        for step in (_scale_down, _suspend, _resume, _finish):
            await step(server, name)
            died |= await dies(connection, key, call, answered)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await _answer(server, name)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await server.start_all(name)
        job = await server.job(name)
        assert condition(job, "Complete") == "True/RoundsFinished"
        assert await server.pods(name) == {}
        assert job["status"]["replacements"]["total"] == 0
        assert job["status"]["incarnations"]["rollout-0"] == 2
        if not died:
            break


async def _scale_down(server: Server, name: str) -> None:
    await server.start_all(name)
    await server.apply_job(name, rollout={"machines": 1})


async def _suspend(server: Server, name: str) -> None:
    await server.apply_job(name, rollout={"machines": 1}, suspend=True)


async def _resume(server: Server, name: str) -> None:
    await server.apply_job(name, rollout={"machines": 1}, suspend=False)


async def _finish(server: Server, name: str) -> None:
    await server.report(name, event=99, finished={"outcome": "Complete"})


async def _answer(server: Server, name: str) -> None:
    """The coordinator acknowledges whatever the target says now."""
    status = (await server.job(name)).get("status") or {}
    finished = (status.get("runtime") or {}).get("finished")
    if status.get("target") and not finished:
        revision = status["target"]["revision"]
        stage = "Suspended" if status["target"]["phase"] == "Suspend" else "Generating"
        await server.report(name, event=revision, applied=revision, drained=["rollout-1"], stage=stage)


FAULTS = {
    "conflict": ApiError(409, "Conflict", "the object has been modified"),
    "overload": ApiError(429, "TooManyRequests", "slow down", retry_after=0.05),
    "internal": ApiError(500, "InternalError", "etcdserver: request timed out"),
    "unavailable": ApiError(503, "ServiceUnavailable", "apiserver is shutting down"),
    "reset": ConnectionResetError("connection reset by peer"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_third_request_fails(connection: kopf.ConnectionInfo, server: Server, fault: str) -> None:
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
    def make(credentials: Credentials, metrics: Metrics) -> FaultyKube:
        kube = FaultyKube(credentials, metrics)
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
    connection: kopf.ConnectionInfo, server: Server, error: ApiError, reason: str
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
    await _expect_first_pods(server, "j")
    assert condition(await server.job("j"), "Stalled") is None


@pytest.mark.parametrize("knows", [True, False])
async def test_the_address_of_a_coordinator_that_was_not_made_is_mended(
    connection: kopf.ConnectionInfo, server: Server, knows: bool
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
        await settle(reconcile, key)

        def away(number: int, method: str, path: str) -> None:
            if method == "POST" and path.endswith("/pods"):
                raise Unreachable("the server does not answer")

        leases = reconcile._observer._leases
        leases.silence = lambda key: Silence("j-coordinator-0-1_x", 3.0)  # type: ignore[method-assign]
        kube.before = away  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await reconcile(key, 0.0)
        assert await selected() == "2"
        leases.silence = lambda key: None  # type: ignore[method-assign]
        kube.before = lambda number, method, path: None  # type: ignore[method-assign]
        if not knows:
            _, reconcile = await lives.enter_async_context(process(connection, server.namespace))
        await settle(reconcile, key, rounds=2)
        assert await selected() == "1"
    await _expect_first_pods(server, "j")


async def test_an_api_server_that_never_answers_is_given_up_in_time(
    connection: kopf.ConnectionInfo, server: Server
) -> None:
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


async def test_watches_that_are_cut_come_back(connection: kopf.ConnectionInfo, server: Server) -> None:
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


async def test_two_replicas_one_leader(connection: kopf.ConnectionInfo, server: Server) -> None:
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


async def test_a_leader_that_cannot_renew_ends(connection: kopf.ConnectionInfo, server: Server) -> None:
    cut = False

    def unplugged(number: int, method: str, path: str) -> None:
        if cut and "/leases/" in path:
            raise ConnectionResetError("cut")

    async def live_until_cut_off() -> None:
        nonlocal cut
        found = options(server.namespace, leader_elect=True, identity="one", lease_seconds=9.0)
        async with running(connection, found, _faulty(unplugged)) as operator:
            await asyncio.wait_for(operator.ready.wait(), 30)
            cut = True

            async def stopped() -> bool:
                return bool(operator.health.standby)

            await until(stopped, 60)

    with pytest.raises(LeadershipLost):
        await live_until_cut_off()


async def test_a_leader_that_could_not_renew_leads_again_in_the_same_process(
    connection: kopf.ConnectionInfo, server: Server
) -> None:
    """With nothing left of what it knew; the kubelet would start a process that ended ever later."""
    cut = False

    def unplugged(number: int, method: str, path: str) -> None:
        if cut:
            raise ConnectionResetError("cut")

    found = options(server.namespace, leader_elect=True, identity="one", lease_seconds=9.0)
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
