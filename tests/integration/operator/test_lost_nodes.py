"""Lost nodes at a real API server: the watch of nodes, the grace, pods deleted by force, and one drain at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_kube.connection import Connection
from rljob_kube.errors import ApiError
from rljob_kube.resources import DISRUPTION_BUDGET, NODE, POD, Json
from tests.support.operator.harness import Server, gone, options, patch, running, until

pytestmark = pytest.mark.cluster

JSON = {"Content-Type": "application/json"}


async def _post(server: Server, path: str, body: Json) -> Json:
    return await server.kube._send("POST", path, json.dumps(body).encode(), {}, JSON)


async def _node(server: Server, name: str, **labels: str) -> None:
    metadata = {"name": name, "labels": labels}
    await _post(server, "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    await _ready(server, name, "True")


async def _ready(server: Server, name: str, status: str, message: str = "") -> None:
    """The kubelet's, or the node controller's, report."""
    body = {"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test", "message": message}]}}
    await patch(server.kube, NODE.path(None, name, "status"), body, "application/merge-patch+json")


async def _bind(server: Server, pod: str, node: str) -> None:
    """The scheduler's part."""
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}}
    body["target"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    await _post(server, POD.path(server.namespace, pod, "binding"), body)


async def _memory(server: Server) -> Json:
    return dict(((await server.job()).get("status") or {}).get("replacements") or {})


async def test_a_lost_node_is_waited_for_replaced_avoided_and_fenced(connection: Connection, server: Server) -> None:
    good, bad = f"good-{server.namespace}", f"bad-{server.namespace}"
    for name in (good, bad):
        await _node(server, name)
    async with running(connection, options(server.namespace, namespaces=())) as operator:
        assert operator._nodes.open
        await server.apply_job(failurePolicy={"nodeFailure": {"graceSeconds": 1}}, rollout={"machines": 3})
        first = {"demo-coordinator-0-1", "demo-trainer-0-1", *(f"demo-rollout-{n}-1" for n in range(3))}
        await server.until_pods(first)
        for pod in sorted(first):
            await _bind(server, pod, bad if pod == "demo-rollout-1-1" else good)
        await server.start_all()
        await server.until_members(first)

        await _ready(server, bad, "Unknown")
        await server.until_pods((first - {"demo-rollout-1-1"}) | {"demo-rollout-1-2"})
        memory = await _memory(server)
        assert [node["name"] for node in memory["avoidedNodes"]] == [bad]
        assert memory["backoff"]["rollout-1"]["reason"] == "NodeNotReady"
        pod = await server.kube.get(POD, server.namespace, "demo-rollout-1-2")
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]

        # No kubelet reports it gone; deleting the Node states that nothing runs there.
        old = await server.kube.get(POD, server.namespace, "demo-rollout-1-1")
        assert old["metadata"]["deletionTimestamp"]
        await server.kube.delete(NODE, None, bad)

        async def gone() -> bool:
            try:
                await server.kube.get(POD, server.namespace, "demo-rollout-1-1")
            except ApiError as error:
                return error.not_found
            return False

        await until(gone)
        await server.until_events({"NodeAvoided", "MachineLost", "MachineReplaced", "PodForceDeleted"})
    await server.kube.delete(NODE, None, good)


async def test_a_trainer_is_asked_to_save_where_its_node_shuts_down(connection: Connection, server: Server) -> None:
    """A kubelet that shuts down gracefully deletes no pod: it tells of its node, and ends the pods."""
    node = f"off-{server.namespace}"
    await _node(server, node)
    async with running(connection, options(server.namespace, namespaces=())):
        await server.apply_job(checkpoint={"volumeClaimName": "state"}, rollout={"machines": 1})
        pods = {"demo-coordinator-0-1", "demo-trainer-0-1", "demo-rollout-0-1"}
        await server.until_pods(pods)
        for pod in sorted(pods):
            await _bind(server, pod, node)
        await server.start_all()
        await server.until_members(pods)

        await _ready(server, node, "False", "node is shutting down")

        async def leaving() -> bool:
            members = ((await server.job()).get("status") or {}).get("members") or []
            return [member["machine"] for member in members if member.get("leaving")] == ["trainer-0"]

        await until(leaving)
        await server.until_events({"MachineLeaving"})
        assert set(await server.pods()) == pods, "it is the kubelet that ends them"
    await server.kube.delete(NODE, None, node)


async def test_weights_go_through_one_rack_after_the_other(connection: Connection, server: Server) -> None:
    racks = {f"n{number}-{server.namespace}": "ab"[number % 2] for number in range(4)}
    for name, rack in racks.items():
        await _node(server, name, rack=rack)
    nodes = list(racks)
    async with running(connection, options(server.namespace, namespaces=())):
        await server.apply_job(rollout={"machines": 4}, relay={"topologyKeys": ["rack"]})
        machines = [f"demo-rollout-{number}-1" for number in range(4)]
        pods = {"demo-coordinator-0-1", "demo-trainer-0-1", *machines}
        await server.until_pods(pods)
        for pod, node in {**dict(zip(machines, nodes, strict=True)), "demo-trainer-0-1": nodes[3]}.items():
            await _bind(server, pod, node)
        await server.start_all()
        await server.until_members(pods)

        async def as_racks_are() -> bool:
            relay = ((await server.job()).get("status") or {}).get("relay") or {}
            return relay.get("chain") == [
                "rollout-3",
                "rollout-1",
                "rollout-0",
                "rollout-2",
            ]  # from the trainer's node on

        await until(as_racks_are)
    for name in nodes:
        await server.kube.delete(NODE, None, name)


async def test_a_budget_lets_one_rollout_machine_go_at_a_time(operator: Any, server: Server) -> None:
    async def least() -> int | None:
        if await gone(server.kube, DISRUPTION_BUDGET, server.namespace, "demo-rollout"):
            return None
        return int((await server.kube.get(DISRUPTION_BUDGET, server.namespace, "demo-rollout"))["spec"]["minAvailable"])

    async def is_two() -> bool:
        return await least() == 2

    async def is_one() -> bool:
        return await least() == 1

    await server.apply_job(rollout={"machines": 3})
    await until(is_two)
    await server.apply_job(rollout={"machines": 2})
    await until(is_one)
