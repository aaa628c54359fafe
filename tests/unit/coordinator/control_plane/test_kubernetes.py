"""The coordinator's Kubernetes side against an API server of a few lines that can refuse, conflict and cut watches."""

import asyncio
import json
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry, Counter

from rljob_api import load
from rljob_api.admission.last_accepted import accept
from rljob_api.status import RuntimeStatus
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.transport import LONGEST_EVENT_BYTES
from rljob_runtime.coordinator.control_plane.kubernetes import KubernetesControlPlane
from rljob_runtime.coordinator.control_plane.lease import TermLease
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient, Conflict, NotFound
from rljob_runtime.entrypoints.health import PortTaken, serve
from rljob_runtime.entrypoints.pod_env import Identity, NotAPod
from rljob_runtime.entrypoints.ray_node import RayNode, environment, head_command, worker_command
from rljob_runtime.protocols import PeerTimeout, Refused, StaleTerm
from tests.support.simulated_job import job, until

JOBS = "/apis/rljob.dev/v1alpha1/namespaces/ns/rljobs"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/demo"


class FakeServer:
    def __init__(self) -> None:
        document = job().manifest()
        document["metadata"].update(namespace="ns", uid="uid-1", resourceVersion="1")
        self.job = {**document, "status": {"target": {"revision": 1}}}
        self.lease = {
            "metadata": {"name": "demo", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"leaseDurationSeconds": 0.3, "leaseTransitions": 4},
        }
        self.fail_with: list[int] = []
        self.patches: list[tuple[dict, dict]] = []
        self.tokens: list[str] = []
        self.watches: list[asyncio.Queue] = []

    def touch(self, **status) -> None:
        version = str(int(self.job["metadata"]["resourceVersion"]) + 1)
        self.job = {
            **self.job,
            "metadata": {**self.job["metadata"], "resourceVersion": version},
            "status": {**self.job["status"], **status},
        }

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._failing])
        app.add_routes(
            [
                web.get(JOBS, self._watch),
                web.get(f"{JOBS}/demo", self._get_job),
                web.patch(f"{JOBS}/demo/status", self._patch),
                web.get(LEASE, self._get_lease),
                web.put(LEASE, self._put_lease),
            ]
        )
        return app

    @web.middleware
    async def _failing(self, request, handler):
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.fail_with:
            return web.json_response({"message": "as asked"}, status=self.fail_with.pop(0))
        return await handler(request)

    async def _get_job(self, request):
        return web.json_response(self.job)

    async def _watch(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue = asyncio.Queue()
        self.watches.append(queue)
        while (line := await queue.get()) is not None:
            await response.write(json.dumps(line).encode() + b"\n")
        return response

    async def _patch(self, request):
        body = json.loads(await request.text())
        self.patches.append((dict(request.query), body))
        self.touch(**body["status"])
        return web.json_response(self.job)

    async def _get_lease(self, request):
        return web.json_response(self.lease)

    async def _put_lease(self, request):
        body = await request.json()
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return web.json_response({"message": "stale"}, status=409)
        version = str(int(body["metadata"]["resourceVersion"]) + 1)
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return web.json_response(self.lease)


@asynccontextmanager
async def client_of(server: FakeServer, token_file=None):
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        connection = Connection(f"http://127.0.0.1:{port}", token_file=token_file)
        async with ApiClient.opened(Credentials(connection), bound=5.0) as client:
            yield client
    finally:
        for queue in server.watches:
            queue.put_nowait(None)
        await runner.cleanup()


async def test_a_report_is_applied_to_the_runtime_alone(tmp_path):
    token = tmp_path / "token"
    token.write_text("t1\n")
    server = FakeServer()
    async with client_of(server, token) as client:
        control = KubernetesControlPlane(client, "ns", "demo")
        await control.report(RuntimeStatus(term=3, event=1, round=2))
        token.write_text("t2")
        server.fail_with = [401]
        await control.observe()
    query, body = server.patches[0]
    assert query == {"fieldManager": "rljob-coordinator", "force": "true"}
    assert body["status"] == {"runtime": {"term": 3, "event": 1, "round": 2}}
    assert server.tokens == ["Bearer t1", "Bearer t1", "Bearer t2"]


@pytest.mark.parametrize(
    ("status", "error"), [(500, PeerTimeout), (429, PeerTimeout), (404, NotFound), (409, Conflict), (403, Refused)]
)
async def test_what_the_server_says_in_the_protocols_words(status, error):
    server = FakeServer()
    async with client_of(server) as client:
        server.fail_with = [status]
        with pytest.raises(error, match=f"{status} as asked"):
            await KubernetesControlPlane(client, "ns", "demo").report(RuntimeStatus())


async def test_a_watch_that_is_cut_begins_with_a_fresh_read():
    server = FakeServer()
    async with client_of(server) as client:
        control = KubernetesControlPlane(client, "ns", "demo")
        watching = asyncio.create_task(control.run())
        assert (await control.observe()).job.status.target.revision == 1
        await until(lambda: bool(server.watches), 0.01)
        await control.wait_changed(5)
        server.touch(target={"revision": 2})
        server.watches[0].put_nowait({"type": "MODIFIED", "object": server.job})
        await control.wait_changed(5)
        assert (await control.observe()).job.status.target.revision == 2
        # Cut, and changed while no watch was open.
        server.touch(target={"revision": 3})
        server.watches[0].put_nowait(None)
        await control.wait_changed(10)
        assert (await control.observe()).job.status.target.revision == 3
        watching.cancel()


def padded(document: dict, size: int) -> dict:
    """With an annotation as long as what `kubectl apply` keeps there."""
    metadata = {**document["metadata"], "annotations": {"last-applied": "x" * size}}
    return {**document, "metadata": metadata}


@pytest.mark.parametrize("size", [100_000, 600_000, 3 << 20, LONGEST_EVENT_BYTES])
async def test_a_too_large_event_ends_only_its_own_watch(size):
    server = FakeServer()
    async with client_of(server) as client:
        control = KubernetesControlPlane(client, "ns", "demo")
        watching = asyncio.create_task(control.run())
        await until(lambda: bool(server.watches), 0.01)
        server.touch(target={"revision": 2})
        requests = len(server.tokens)
        server.watches[0].put_nowait({"type": "MODIFIED", "object": padded(server.job, size)})
        if size == LONGEST_EVENT_BYTES:
            await until(lambda: len(server.watches) > 1, 0.05)
        else:
            while (await control.observe()).job.status.target.revision == 1:
                await control.wait_changed(5)
            assert len(server.tokens) == requests, "by the event, and not by another list"
        assert not watching.done()
        watching.cancel()


async def test_an_edit_that_is_nested_as_deeply_as_a_server_takes_ends_no_watch():
    server = FakeServer()
    server.touch(accepted=accept(load(server.job)).to_dict())
    async with client_of(server) as client:
        control = KubernetesControlPlane(client, "ns", "demo")
        watching = asyncio.create_task(control.run())
        await until(lambda: bool(server.watches), 0.01)
        server.touch(target={"revision": 2})
        deep: list = []
        for _ in range(9000):
            deep = [deep]
        template = {"spec": {"ofANewerKubernetes": deep}}
        spec = {**server.job["spec"], "rollout": {**server.job["spec"]["rollout"], "template": template}}
        server.watches[0].put_nowait({"type": "MODIFIED", "object": {**server.job, "spec": spec}})
        while (await control.observe()).job.status.target.revision == 1:
            await control.wait_changed(5)
        assert not watching.done()
        assert (len(server.watches), (await control.observe()).job.spec.rollout.template.spec) == (1, {})
        watching.cancel()


@pytest.mark.parametrize("edit", [{"rounds": 99}, {"rounds": 0}])
async def test_a_spec_is_followed_once_the_operator_has_accepted_it(edit):
    server = FakeServer()
    first = load(server.job)
    server.touch(accepted=accept(first).to_dict())
    server.job["spec"] = {**server.job["spec"], **edit}
    async with client_of(server) as client:
        assert (await KubernetesControlPlane(client, "ns", "demo").observe()).job.spec == first.spec
        if edit["rounds"]:
            server.touch(accepted=accept(load(server.job)).to_dict())
            assert (await KubernetesControlPlane(client, "ns", "demo").observe()).job.spec.rounds == 99


def lease_of(client, holder):
    return TermLease(client, "ns", "demo", holder, lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


async def test_taking_the_lease_raises_the_term_once_despite_conflicts():
    server = FakeServer()
    async with client_of(server) as client:
        server.fail_with = [500]
        first = lease_of(client, "demo-coordinator-0-1")
        assert await first.take() == 5
        assert await first.take() == 5
        assert await lease_of(client, "demo-coordinator-0-2").take() == 6
    assert server.lease["spec"]["holderIdentity"] == "demo-coordinator-0-2"
    assert server.lease["spec"]["renewTime"] == "2026-01-02T03:04:05.000000Z"


async def test_who_leaves_gives_the_lease_back_and_the_term_rises_all_the_same():
    server = FakeServer()
    async with client_of(server) as client:
        first = lease_of(client, "one")
        assert await first.take() == 5
        await first.release()
        assert "holderIdentity" not in server.lease["spec"]
        assert await lease_of(client, "two").take() == 6
        await first.release()
        assert server.lease["spec"]["holderIdentity"] == "two", "it is not the former one's to give back"


async def test_who_lost_the_lease_steps_down_and_who_cannot_reach_it_stays():
    server = FakeServer()
    async with client_of(server) as client:
        first = lease_of(client, "one")
        await first.take()
        keeping = asyncio.create_task(first.keep())
        server.fail_with = [500, 500]
        await asyncio.sleep(0.5)
        assert not keeping.done()
        await lease_of(client, "two").take()
        with pytest.raises(StaleTerm, match="two holds the lease"):
            await asyncio.wait_for(keeping, 10)


# --- the pod ---

ENVIRONMENT = {
    "RLJOB_NAME": "demo",
    "RLJOB_NAMESPACE": "ns",
    "RLJOB_UID": "uid-1",
    "RLJOB_MACHINE": "rollout-0",
    "RLJOB_INCARNATION": "3",
    "RLJOB_COORDINATOR_ADDRESS": "demo-coordinator.ns.svc",
    "POD_NAME": "demo-rollout-0-3",
    "POD_IP": "10.0.0.7",
}


def test_who_the_pod_is():
    identity = Identity.of(ENVIRONMENT)
    assert identity.resource == "rollout-0.3"
    assert '--resources={"rollout-0.3": 1}' in worker_command(identity)
    assert "--address=demo-coordinator.ns.svc:6379" in worker_command(identity)
    assert {"--head", "--num-cpus=0", "--node-ip-address=10.0.0.7"} <= set(head_command(identity.pod_ip))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"RLJOB_UID": "", "POD_IP": ""}, "lacks RLJOB_UID, POD_IP"), ({"RLJOB_INCARNATION": "x"}, "is 'x'; a number")],
)
def test_outside_of_a_pod_it_says_what_is_missing(change, message):
    with pytest.raises(NotAPod, match=message):
        Identity.of({**ENVIRONMENT, **change})


def test_the_token_is_named_by_its_file_and_only_the_head_has_tables(tmp_path):
    token = tmp_path / "ray-token"
    head, worker = environment(token, tmp_path / "ray", {}), environment(token, None, {})
    assert head["RAY_AUTH_TOKEN_PATH"] == worker["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert head["RAY_gcs_storage"] == "rocksdb"
    assert "RAY_gcs_storage" not in worker


async def test_health_tells_ready_from_not_and_a_taken_port():
    registry, reason, host = CollectorRegistry(), ["starting"], str(IPv4Address("127.0.0.0") + os.getpid())
    Counter("demo_total", "For the test.", registry=registry)
    async with (
        serve(host, lambda: reason[0] if reason else None, registry, port=18643),
        ClientSession() as session,
    ):
        for path, status, text in (("healthz", 200, "ok"), ("readyz", 503, "starting"), ("metrics", 200, "demo_total")):
            async with session.get(f"http://{host}:18643/{path}") as response:
                assert response.status == status
                assert text in await response.text()
        reason.clear()
        async with session.get(f"http://{host}:18643/readyz") as response:
            assert response.status == 200
        with pytest.raises(PortTaken, match="address already in use"):
            async with serve(host, lambda: None, registry, port=18643):
                pass


async def test_the_child_is_ended_with_all_it_started(tmp_path):
    marker = tmp_path / "pid"
    node = RayNode(["bash", "-c", f"sleep 1000 & echo $! > {marker}; wait"], {"PATH": "/usr/bin:/bin"})
    running = asyncio.create_task(node.run())
    await until(lambda: node.up and marker.exists() and bool(marker.read_text().strip()), 0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not node.up
    stat = Path(f"/proc/{marker.read_text().strip()}/stat")

    def ended() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    async with asyncio.timeout(30):
        await until(ended)
