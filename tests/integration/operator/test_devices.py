"""Devices by Dynamic Resource Allocation, with the real scheduler and controllers. ResourceSlices are published by the
tests, kwok stands in for the kubelets: no driver prepares a device."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.local_cluster import kube
from hack.local_cluster.control_plane.control_plane import ControlPlane
from hack.local_cluster.private.apiserver import api_server
from hack.local_cluster.private.kwok import FakeNodes
from rljob_kube.connection import Connection
from rljob_kube.errors import ApiError
from rljob_operator.policies.pods import devices
from tests.support.operator.device_fleet import API, Fleet
from tests.support.operator.harness import (
    CRD,
    FaultyKube,
    Server,
    admin,
    condition,
    connect,
    make_namespace,
    options,
    running,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUNNING = "True/RoundsProgressing"


@pytest.fixture(scope="module")
def scheduled(fake_nodes: FakeNodes) -> Connection:
    return connect(fake_nodes.server.kubeconfig, yaml.safe_load(CRD.read_text()))


@pytest.fixture
async def served(fake_nodes: FakeNodes, scheduled: Connection) -> AsyncIterator[Server]:
    """A namespace of its own with an operator in it."""
    api, namespace = fake_nodes.server.client(), f"devices-{uuid.uuid4().hex[:8]}"
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    kube.wait("the namespace's account", 60, lambda: api.find(account) is not None, lambda: "")
    async with admin(scheduled) as client, running(scheduled, options(namespace)):
        yield Server(client, namespace)
    api.call("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.fixture
def fleet(fake_nodes: FakeNodes, served: Server) -> Iterator[Fleet]:
    made = Fleet(fake_nodes.server.client(), f"gpu-{uuid.uuid4().hex[:6]}.example.com", served.namespace)
    yield made
    made.clear()


def spec(machines: int, **accelerator: str) -> dict[str, Any]:
    """Rollout machines of two devices each; the trainer and the coordinator have none."""
    rollout = {"machines": machines, "acceleratorsPerMachine": 2, "tensorParallelSize": 2}
    return {"accelerator": accelerator, "rollout": rollout, "runPolicy": {"drainSeconds": 1}}


async def nodes(server: Server) -> dict[str, str | None]:
    """Rollout pod → the node that it stands on."""
    pods = await server.pods()
    return {name: pod["spec"].get("nodeName") for name, pod in pods.items() if "-rollout-" in name}


def message(job: dict[str, Any]) -> str:
    """Of the condition Stalled; empty where there is none."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((one["message"] for one in conditions if one["type"] == "Stalled"), "")


async def test_machines_stand_where_devices_are_and_claims_go_with_them(served: Server, fleet: Fleet) -> None:
    fleet.make_class()
    fleet.publish("fake-2", 2)
    fleet.publish("fake-3", 4)
    await served.apply_job(**spec(3, deviceClass=fleet.name))
    await served.until(lambda job: condition(job, "Ready") == RUNNING and job["status"]["rollout"]["ready"] == 3)
    assert Counter((await nodes(served)).values()) == {"fake-2": 1, "fake-3": 2}
    held = fleet.claims()
    assert set(held) == set(await nodes(served)), "one claim for each rollout pod and for no other"
    assert sorted(device for some in held.values() for device in some) == [
        *("fake-2/gpu-0", "fake-2/gpu-1"),
        *(f"fake-3/gpu-{number}" for number in range(4)),
    ]

    await served.kill_pod("demo-rollout-1-1")
    await served.until_pods({*set(await served.pods()) - {"demo-rollout-1-1"}, "demo-rollout-1-2"})
    held["demo-rollout-1-2"] = held.pop("demo-rollout-1-1")  # the only devices that are free
    await until_claims(fleet, held)

    await served.apply_job(**spec(1, deviceClass=fleet.name))
    await until_claims(fleet, {"demo-rollout-0-1": held["demo-rollout-0-1"]})


async def until_claims(fleet: Fleet, wanted: dict[str, list[str]]) -> None:
    """Wait until the pods hold exactly these devices."""

    async def holds() -> bool:
        return fleet.claims() == wanted

    await until(holds, told=lambda: f"claims: {fleet.claims()}, wanted: {wanted}")


async def test_a_class_that_is_absent_is_told(served: Server, fleet: Fleet) -> None:
    await served.apply_job(**spec(2, deviceClass=fleet.name))
    told = await served.until(lambda job: condition(job, "Stalled") == "True/Unschedulable")
    assert f"device class {fleet.name} does not exist" in message(told)
    assert f"Each rollout pod claims 2 devices of DeviceClass {fleet.name} (spec.accelerator.deviceClass)." in message(
        told
    )
    fleet.make_class()
    await served.until(lambda job: "cannot allocate all claims" in message(job))


async def test_a_class_without_devices_is_told_until_there_are_enough(served: Server, fleet: Fleet) -> None:
    fleet.make_class()
    await served.apply_job(**spec(2, deviceClass=fleet.name))
    # Until the scheduler knows the class, the pods wait for that.
    why = ("2 of 4 pods find no node", "cannot allocate all claims")
    told = await served.until(lambda job: all(words in message(job) for words in why))
    assert condition(told, "Stalled") == "True/Unschedulable"
    fleet.publish("fake-1", 3)
    told = await served.until(lambda job: "1 of 4 pods find no node" in message(job))
    assert "kubectl get deviceclasses,resourceslices shows what the cluster has." in message(told)
    fleet.publish("fake-4", 2)
    await served.until(lambda job: condition(job, "Ready") == RUNNING and condition(job, "Stalled") is None)
    assert set((await nodes(served)).values()) == {"fake-1", "fake-4"}


async def test_a_template_of_another_namespace_is_none(served: Server, fleet: Fleet) -> None:
    """No rollout pod waits in silence: Kubernetes says nothing on a pod whose template is absent."""
    fleet.make_class()
    fleet.publish("fake-2", 4)
    fleet.make_template("default", fleet.name, 2)
    try:
        await served.apply_job(**spec(2, claimTemplate=fleet.name))
        told = await served.until(lambda job: condition(job, "Stalled") == "True/ClaimTemplateNotFound")
        assert f"spec.accelerator.claimTemplate: namespace {served.namespace} has no" in message(told)
        assert "pods cannot use a template of another namespace" in message(told)
        assert set(await served.pods()) == {"demo-coordinator-0-1", "demo-trainer-0-1"}
        fleet.make_template(served.namespace, fleet.name, 2)
        await served.until(lambda job: condition(job, "Ready") == RUNNING and condition(job, "Stalled") is None)
        assert set((await nodes(served)).values()) == {"fake-2"}
    finally:
        fleet.api.call("DELETE", f"{API}/namespaces/default/resourceclaimtemplates/{fleet.name}")


async def test_an_extended_resource_of_a_class_comes_by_scheduler_claims(served: Server, fleet: Fleet) -> None:
    """The job asks as for any device plugin's resource, and has nothing of claims in its pods."""
    resource = f"example.com/{fleet.name.partition('.')[0]}"
    fleet.make_class(resource)
    fleet.publish("fake-2", 4)
    await served.apply_job(**spec(2, resource=resource))
    await served.until(lambda job: condition(job, "Ready") == RUNNING and job["status"]["rollout"]["ready"] == 2)
    assert set((await nodes(served)).values()) == {"fake-2"}
    pods = {name: pod for name, pod in (await served.pods()).items() if "-rollout-" in name}
    assert not [name for name, pod in pods.items() if "resourceClaims" in pod["spec"]]
    given = {name: pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] for name, pod in pods.items()}
    assert len(set(given.values())) == 2
    held = fleet.claims()
    assert {name: len(some) for name, some in held.items()} == dict.fromkeys(pods, 2)

    await served.apply_job(**spec(3, resource=resource))
    told = await served.until(lambda job: condition(job, "Stalled") == "True/Unschedulable")
    assert f"Each rollout pod claims 2 of {resource} (spec.accelerator.resource), where a DeviceClass serves that." in (
        message(told)
    )


# --- servers without the API of claims --------------------------------------------------------------------------------


async def test_the_server_is_asked_what_it_serves(server: Server) -> None:
    assert await server.kube.serves(*devices.API)
    assert not await server.kube.serves(devices.API[0], "v9")
    assert not await server.kube.serves("absent.example.com", "v1")


async def test_pods_wait_for_the_upgrade_that_brings_the_api(connection: Connection, server: Server) -> None:
    """The answers of an older server to what concerns claims, until it is another one."""
    older = [True]

    class Older(FaultyKube):
        @staticmethod
        def before(number: int, method: str, path: str) -> None:
            if older[0] and path.startswith(API):
                raise ApiError(404, "", "404 page not found")

    async with running(connection, options(server.namespace), make_kube=Older):
        await refused(server)
        older[0] = False
        await server.until_pods({*UNCLAIMED, "demo-rollout-0-1", "demo-rollout-1-1"})
        await server.until(lambda job: condition(job, "Stalled") is None)


UNCLAIMED = {"demo-coordinator-0-1", "demo-trainer-0-1"}


async def refused(server: Server) -> None:
    """A job that claims devices is told that it cannot, and has the pods that claim none."""
    await server.apply_job(**spec(2, deviceClass="gpu.example.com"))
    told = await server.until(lambda job: condition(job, "Stalled") == "True/DeviceClaimsNotServed")
    assert "this cluster does not serve resource.k8s.io/v1. No rollout pod is made." in message(told)
    assert set(await server.pods()) == UNCLAIMED


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Kubernetes 1.34 with dynamic resource allocation switched off, as it was in 1.33 by default."""
    arguments = ControlPlane.apiserver
    flags = ["--feature-gates=DynamicResourceAllocation=false", f"--runtime-config={'/'.join(devices.API)}=false"]
    monkeypatch.setattr(ControlPlane, "apiserver", lambda plane: [*arguments(plane), *flags])
    with api_server(tmp_path, kubernetes="1.34") as made:
        yield connect(made.kubeconfig, yaml.safe_load(CRD.read_text()))


@pytest.mark.all_minors
async def test_an_old_server_has_no_claims(old: Connection) -> None:
    async with admin(old) as client, running(old, options("old")):
        await make_namespace(client, "old")
        assert not await client.serves(*devices.API)
        await refused(Server(client, "old"))
