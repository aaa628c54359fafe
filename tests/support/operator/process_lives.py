"""Lives of an operator's process, one reconciliation at a time and without the watches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.event_recorder import EventRecorder
from rljob_kube.transport import RequestLimits
from rljob_operator.api_access import ApiAccess
from rljob_operator.applier import Applier, WrittenObjects
from rljob_operator.metrics import Metrics
from rljob_operator.optional_apis.device_claims import DeviceClaimCache
from rljob_operator.optional_apis.kueue import KueueCache
from rljob_operator.policies.base.config import Config
from rljob_operator.readers.coordinator_leases import CoordinatorLeaseMonitor
from rljob_operator.readers.deployment_lister import DeploymentLister
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.readers.observer import Observer, PodLister, Sources
from rljob_operator.reconciler import Reconciler
from rljob_operator.seals import Seals
from tests.support.operator.harness import FaultyKube, Server

CONFIG = Config(runtime_image="example/runtime:1")
FIRST = {"j-coordinator-0-1", "j-trainer-0-1", "j-rollout-0-1", "j-rollout-1-1"}
"""The first pods of a job that is called j."""


@contextlib.asynccontextmanager
async def process(connection: Connection, namespace: str) -> AsyncIterator[tuple[FaultyKube, Reconciler]]:
    """What one life of the operator knows, without the watches: a client and a reconciler with empty memories."""
    metrics = Metrics()
    kube = FaultyKube(Credentials(connection), on_request=metrics.observe_request, limits=RequestLimits(attempts=3))
    async with kube.opened():
        pods = PodLister(kube)
        await pods.prime([namespace])
        leases = CoordinatorLeaseMonitor(kube, [namespace], lambda key: None)
        kueue = KueueCache(kube, [namespace], lambda key: None)
        seals = Seals(kube)
        deployments = DeploymentLister(kube)
        observer = Observer(
            Sources(
                pods,
                leases.silence,
                NodeCache(kube).facts,
                devices=DeviceClaimCache(kube).facts,
                kueue=kueue.facts,
                forged=seals.alarm,
                runners=deployments.runners,
            )
        )
        api = ApiAccess(kube, EventRecorder(kube), metrics)

        async def leading() -> None:
            return

        applier = Applier(api, leading, WrittenObjects(pods.observe, deployments.observe), seals, parallel=1)
        kube.sent.clear()
        yield kube, Reconciler(api, observer, applier, CONFIG)


async def show_pods(server: Server, reconcile: Reconciler, name: str) -> None:
    """The watch's part: from now on no list of pods is older than what a test has written about them."""
    reconcile._observer._sources.pods.observe((await server.pods(name)).values())


async def settle(reconcile: Reconciler, key: tuple[str, str], rounds: int = 4) -> None:
    """Reconcile until nothing is written any more."""
    for _ in range(rounds):
        await reconcile(key, 0.0)


async def expect_first_pods(server: Server, name: str) -> None:
    """Each machine has its first pod, and none was counted as lost."""
    assert set(await server.pods(name)) == {pod.replace("j-", f"{name}-", 1) for pod in FIRST}
    status = (await server.job(name))["status"]
    assert status["incarnations"] == {"coordinator-0": 1, "trainer-0": 1, "rollout-0": 1, "rollout-1": 1}
    assert status["replacements"]["total"] == 0
