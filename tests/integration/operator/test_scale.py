"""Large jobs and many jobs, past the real scheduler and controllers; kwok stands in for kubelets.

What an operator asks of the API server for one machine, or one job, must not grow with their number. Seconds are not
judged: the machine may be busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.local_cluster import kube
from hack.local_cluster.private import kwok
from hack.local_cluster.private.apiserver import Server as ApiServer
from hack.local_cluster.private.apiserver import api_server
from rljob_kube import kubeconfig
from rljob_kube.connection import Connection
from rljob_kube.resources import POD, RLJOB
from rljob_operator.app import Operator
from tests.support.operator.harness import Server, admin, condition, five_minutes, gone, options, running
from tests.support.operator.stand_in_coordinator import StandInCoordinators
from tests.support.paths import ROOT

pytestmark = pytest.mark.cluster

CRD = ROOT / "crds/rljob.yaml"
GPU = "nvidia.com/gpu"
MACHINES_PER_NODE = 8
FEW_NODES = 10
RUNNING = "True/RoundsProgressing"
PODS_OF_A_SMALL_JOB = 3
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


@contextlib.contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[kwok.FakeNodes]:
    """An API server with controllers that knows RLJobs, and nodes of eight accelerators each."""
    # kwok may get little of a machine that is busy with many nodes, and these are to be lost on purpose only.
    with api_server(folder, controllers=True, node_grace_seconds=40 if nodes > FEW_NODES else 10) as server:
        crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
        api, name = server.client(), crd["metadata"]["name"]
        api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", crd)
        kube.wait("RLJobs", 30, lambda: api.get("/apis/rljob.dev/v1alpha1/rljobs")["items"] == [])
        with kwok.fake_nodes(server, nodes, {GPU: str(MACHINES_PER_NODE)}) as made:
            yield made


def connected(server: ApiServer) -> Connection:
    return kubeconfig.load([server.kubeconfig])


class Scene:
    """An operator, its coordinators, and a namespace."""

    def __init__(self, server: Server, operator: Operator) -> None:
        self.server = server
        self.operator = operator

    def asked(self) -> Counter[str]:
        """Requests of the operator so far, by what was done with what."""
        found: Counter[str] = Counter()
        for sample in self._samples("rljob_operator_api_requests_total"):
            # Leases are renewed and looked at by the clock.
            if sample.labels["resource"] != "leases":
                found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
        return found

    def reconciles(self) -> int:
        return int(sum(sample.value for sample in self._samples("rljob_operator_reconciles_total")))

    def _samples(self, name: str) -> list[Any]:
        collected = self.operator.metrics.registry.collect()
        return [sample for metric in collected for sample in metric.samples if sample.name == name]


@contextlib.asynccontextmanager
async def scene(nodes: kwok.FakeNodes, name: str, *, everywhere: bool, completes: bool) -> AsyncIterator[Scene]:
    """A namespace of that name. ``everywhere``: the operator serves all of them, and so may watch nodes."""
    connection = connected(nodes.server)
    nodes.server.client().call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    served = options(name, namespaces=()) if everywhere else options(name)
    async with admin(connection) as client, running(connection, served) as operator:
        with StandInCoordinators(
            nodes.server.kubeconfig, name, completes=completes, report_seconds=5.0
        ) as coordinators:
            yield Scene(Server(client, name), operator)
        assert coordinators.stall == []


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kwok.FakeNodes]:
    with cluster(tmp_path_factory.mktemp("scale"), request.param) as made:
        yield made


async def poll(holds: Callable[[], Awaitable[bool]], seconds: float = 1500) -> None:
    """Wait, with a second between two looks: each reads much."""
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, f"not in {seconds} s"
        await asyncio.sleep(1)


def per(requests: Counter[str], number: int) -> float:
    return requests.total() / number


@pytest.mark.parametrize(
    ("nodes", "machines"), [(6, 32), pytest.param(130, 1024, marks=SLOW)], indirect=["nodes"], ids=["32", "1024"]
)
async def test_a_large_job_costs_no_more_a_machine_than_a_small_one(nodes: kwok.FakeNodes, machines: int) -> None:
    """Nor does the loss of a node cost more where it has more machines."""
    few, many = [await large_job(nodes, number) for number in (machines // 8, machines)]
    assert per(many.start, machines) <= per(few.start, machines // 8)
    assert per(many.repair, len(many.lost)) <= 2 * per(few.repair, len(few.lost))


@dataclass
class Costs:
    """Requests until a job is Ready; and until the machines of a lost node are Ready elsewhere."""

    start: Counter[str]
    repair: Counter[str]
    lost: set[str]


async def large_job(nodes: kwok.FakeNodes, machines: int) -> Costs:
    async with scene(nodes, f"large-{machines}", everywhere=True, completes=False) as found:
        server = found.server
        rollout = {"machines": machines, "acceleratorsPerMachine": 1, "template": five_minutes()}
        # The node that is lost has rollout machines alone.
        first = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": nodes.names[0]}}}}
        grace = {"nodeFailure": {"graceSeconds": 1}}
        await server.apply_job(rollout=rollout, failurePolicy=grace, coordinator=first, trainer=first)
        await all_ready(server, machines)
        start, pods = found.asked(), await server.pods()
        assert start["create pods"] == len(pods) == machines + 2
        places = Counter(pod["spec"]["nodeName"] for name, pod in pods.items() if "-rollout-" in name)
        assert places.keys() <= set(nodes.names)
        assert max(places.values()) <= MACHINES_PER_NODE
        relay = (await server.job())["status"]["relay"]
        assert sorted(relay["chain"]) == sorted(f"rollout-{number}" for number in range(machines))

        node = next(node for node in places if node != nodes.names[0])
        lost = {name for name, pod in pods.items() if pod["spec"]["nodeName"] == node}
        nodes.hang(node)
        try:
            await all_ready(server, machines, without=lost)
            repair, after = found.asked() - start, await server.pods()
        finally:
            nodes.recover(node)
        # The next job needs its accelerators, and the garbage collector of a new server begins after 30 s.
        await server.kube.delete(RLJOB, server.namespace, "demo")
        for name in after:
            await server.kube.delete(POD, server.namespace, name)
        await poll(lambda: gone(server.kube, POD, server.namespace, "demo-coordinator-0-1"))
    replacements = {name.removesuffix("-1") + "-2" for name in lost}
    assert after.keys() == (pods.keys() - lost) | replacements
    assert repair["create pods"] == len(lost)
    assert all(after[name]["metadata"]["uid"] == pods[name]["metadata"]["uid"] for name in pods.keys() - lost)
    assert all(after[name]["spec"]["nodeName"] != node for name in replacements)
    return Costs(start, repair, lost)


async def all_ready(server: Server, machines: int, without: Collection[str] = ()) -> None:
    """Wait until the job runs with that many ready machines, and none in the pods ``without``."""

    async def holds() -> bool:
        job = await server.job()
        status = job.get("status") or {}
        members = {f"demo-{member['machine']}-{member['incarnation']}" for member in status.get("members") or []}
        ready = (status.get("rollout") or {}).get("ready") == machines
        return condition(job, "Ready") == RUNNING and ready and members.isdisjoint(without)

    await poll(holds)


@pytest.mark.parametrize(
    ("nodes", "jobs"),
    [(6, 10), pytest.param(10, 50, marks=pytest.mark.slow), pytest.param(130, 1000, marks=SLOW)],
    indirect=["nodes"],
    ids=["10", "50", "1000"],
)
async def test_many_jobs_cost_no_more_each_than_a_few(nodes: kwok.FakeNodes, jobs: int) -> None:
    (few, few_looks), (many, many_looks) = [await small_jobs(nodes, number) for number in (jobs // 10, jobs)]
    assert per(many, jobs) <= 1.25 * per(few, jobs // 10)
    assert many_looks / jobs <= 1.5 * few_looks / (jobs // 10)


async def small_jobs(nodes: kwok.FakeNodes, jobs: int) -> tuple[Counter[str], int]:
    """Requests and reconciles until all jobs are complete and their pods are deleted."""
    async with scene(nodes, f"many-{jobs}", everywhere=False, completes=True) as found:
        server = found.server
        for number in range(jobs):
            await server.apply_job(f"job-{number}", rounds=1, rollout={"machines": 1})

        async def complete() -> bool:
            items = await server.kube.list(RLJOB, server.namespace)
            return [condition(job, "Complete") for job in items] == ["True/RoundsFinished"] * jobs

        async def deleted() -> bool:
            items = await server.kube.list(POD, server.namespace)
            return not items and found.operator.queue.idle()

        await poll(complete)
        await poll(deleted)
        assert found.asked()["create pods"] == found.asked()["delete pods"] == PODS_OF_A_SMALL_JOB * jobs
        return found.asked(), found.reconciles()
