"""Environments against a real API server: the operator's objects. The tests play the controller of Deployments."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rljob_kube.connection import Connection
from rljob_kube.resources import DEPLOYMENT, NETWORK_POLICY, POD, SECRET, SERVICE, Json
from tests.support.operator.environment_jobs import CALC, SHELL, calc, deployments, run_runners, set_runners
from tests.support.operator.harness import FaultyKube, Server, condition, gone, options, patch, running, until

pytestmark = pytest.mark.cluster

RUNNING = "True/RoundsProgressing"
NAMES = {"calc": "demo-environment-calc", "shell": "demo-environment-shell"}
BOTH: Json = {"environments": [CALC, SHELL]}


async def replicas(server: Server) -> dict[str, int]:
    return {name: item["spec"]["replicas"] for name, item in (await deployments(server)).items()}


async def started(server: Server, **changes: Any) -> Json:
    """A job with two environments whose pods are all ready."""
    await server.apply_job(**{**BOTH, **changes})
    await server.until(lambda j: (j.get("status") or {}).get("members"))
    await server.start_all()
    await until(lambda: _applied(server, {"calc": 2, "shell": 1}))
    await server.until(lambda j: condition(j, "Ready") == "False/EnvironmentNotReady")
    await run_runners(server)
    return await server.until(lambda j: condition(j, "Ready") == RUNNING)


async def _applied(server: Server, wanted: dict[str, int]) -> bool:
    return await replicas(server) == wanted


async def test_a_job_gets_its_runners_and_becomes_ready_with_them(server: Server, operator: Any) -> None:
    job = await started(server)
    uid = job["metadata"]["uid"]
    assert job["status"]["environments"] == [
        {"name": "calc", "runners": 2, "ready": 2},
        {"name": "shell", "runners": 1, "ready": 1},
    ]
    secret_name = f"demo-environments-{uid[:8]}"
    secret = await server.kube.get(SECRET, server.namespace, secret_name)
    assert set(secret["data"]) == {"capability-key", "runners-key", "runner-key-calc", "runner-key-shell"}
    names = ("demo-environments", "demo-environment-calc", "demo-environment-shell")
    policies = [await server.kube.get(NETWORK_POLICY, server.namespace, name) for name in names]
    for owned in (secret, *policies, *(await deployments(server)).values()):
        (owner,) = owned["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    service = await server.kube.get(SERVICE, server.namespace, "demo-coordinator")
    assert {one["name"]: one["port"] for one in service["spec"]["ports"]}["gateway"] == 8000
    (coordinator,) = [pod for name, pod in (await server.pods()).items() if "coordinator" in name]
    assert [one["name"] for one in coordinator["spec"]["containers"]] == ["main", "gateway"]

    await set_runners(server, NAMES["shell"], 0)
    await server.until(lambda j: condition(j, "Ready") == "False/EnvironmentNotReady")
    await run_runners(server)
    await server.until(lambda j: condition(j, "Ready") == RUNNING)


async def test_suspend_resume_and_end(server: Server, operator: Any) -> None:
    await started(server)
    await server.apply_job(**BOTH, suspend=True)
    job = await server.until(lambda j: j["status"]["target"]["phase"] == "Suspend")
    assert await replicas(server) == {"calc": 2, "shell": 1}, "the round that ends needs turns"
    await server.report(event=1, round=2, applied=job["status"]["target"]["revision"], stage="Suspended")
    await until(lambda: _applied(server, {"calc": 0, "shell": 0}))
    await server.until_pods(set())
    assert condition(await server.job(), "Suspended") == "False/Suspending", "runners still exist"
    await run_runners(server)
    job = await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
    assert [one["runners"] for one in job["status"]["environments"]] == [0, 0]

    edited = {"environments": [calc(maxTurns=3), SHELL]}
    before = (await deployments(server))["calc"]["spec"]["template"]
    await server.apply_job(**edited, suspend=False)
    await until(lambda: _applied(server, {"calc": 2, "shell": 1}))
    after = (await deployments(server))["calc"]["spec"]["template"]
    assert '"maxTurns": 3' in after["metadata"]["annotations"]["rljob.dev/settings"]
    assert before["spec"] == after["spec"]
    await server.until(lambda j: j["status"]["target"]["phase"] == "Run")
    await server.start_all()
    await run_runners(server)
    await server.until(lambda j: condition(j, "Ready") == RUNNING)

    await server.report(event=9, finished={"outcome": "Complete"})
    await until(lambda: _applied(server, {"calc": 0, "shell": 0}))
    await run_runners(server)
    job = await server.until(lambda j: all(one["ready"] == 0 for one in j["status"]["environments"]))
    assert condition(job, "Complete") == "True/RoundsFinished"


async def test_an_edit_of_a_template_is_applied_and_leaves_no_earlier_field(server: Server, operator: Any) -> None:
    first = {
        "spec": {
            "nodeSelector": {"pool": "cpu"},
            "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}],
        }
    }
    await started(server, environments=[calc(template=first), SHELL])
    spec = (await deployments(server))["calc"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "cpu"}
    second = {"spec": {"containers": [{"name": "main", "image": "example/own:2"}]}}
    await server.apply_job(environments=[calc(template=second), SHELL])

    async def edited() -> bool:
        spec = (await deployments(server))["calc"]["spec"]["template"]["spec"]
        return bool(spec["containers"][0]["image"] == "example/own:2")

    await until(edited)
    spec = (await deployments(server))["calc"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert [one["name"] for one in spec["containers"][0]["env"]] == ["HOME"]


async def test_deleted_and_scaled_deployments_are_restored(server: Server, operator: Any) -> None:
    await started(server)
    await server.kube.delete(DEPLOYMENT, server.namespace, NAMES["calc"])
    await until(lambda: _applied(server, {"calc": 2, "shell": 1}))
    path = DEPLOYMENT.path(server.namespace, NAMES["shell"], "scale")
    await patch(server.kube, path, {"spec": {"replicas": 7}}, "application/merge-patch+json")
    await until(lambda: _applied(server, {"calc": 2, "shell": 1}))


async def test_why_runners_cannot_start_is_told(server: Server, operator: Any) -> None:
    await started(server)
    message = 'pods "demo-environment-calc-1-2" is forbidden: exceeded quota: q, requested: pods=1'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    await set_runners(server, NAMES["calc"], 0, conditions=[refused])
    job = await server.until(lambda j: condition(j, "Stalled") == "True/QuotaExceeded")
    assert condition(job, "Ready") == "False/QuotaExceeded"
    overdue = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    await set_runners(server, NAMES["calc"], 1, conditions=[overdue])
    await server.until(lambda j: condition(j, "Stalled") == "True/RunnersNotStarting")
    await server.until_events({"QuotaExceeded", "RunnersNotStarting"})
    await set_runners(server, NAMES["calc"], 2, conditions=[])
    await server.until(lambda j: condition(j, "Stalled") is None)


async def test_an_image_without_the_runner_is_reported_before_the_deadline(server: Server, operator: Any) -> None:
    await started(server)
    await set_runners(server, NAMES["calc"], 1)
    await server.until(lambda j: condition(j, "Ready") == RUNNING)
    template = (await deployments(server))["calc"]["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{NAMES['calc']}-7f", "uid": "r-1"}
    metadata = {"name": f"{NAMES['calc']}-7f-x", "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
    metadata["namespace"] = server.namespace
    spec = {"containers": [{"name": "main", "image": "acme/agent:1"}]}
    await server.kube.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    ended = {"exitCode": 128, "reason": "StartError", "message": 'exec: "python": executable file not found in $PATH'}
    seen = {"name": "main", "ready": False, "restartCount": 3, "image": "acme/agent:1", "imageID": ""}
    states = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    await server.set_pod(metadata["name"], containerStatuses=[seen | states])
    job = await server.until(lambda j: condition(j, "Stalled") == "True/RunnerMissing")
    (stalled,) = [one for one in job["status"]["conditions"] if one["type"] == "Stalled"]
    assert "environment calc: container main, image acme/agent:1 does not have the runner" in stalled["message"]
    await server.until_events({"RunnerMissing"})
    await run_runners(server)
    await server.until(lambda j: condition(j, "Stalled") is None)


async def test_a_deployment_of_another_owner_is_left_alone(server: Server, operator: Any) -> None:
    labels = {"matchLabels": {"a": "b"}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "x", "image": "i"}]}}
    foreign: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAMES["calc"]}}
    foreign["metadata"]["namespace"] = server.namespace
    await server.kube.create(DEPLOYMENT, {**foreign, "spec": {"selector": labels, "template": template}})
    await server.apply_job(**BOTH)
    await server.until(lambda j: condition(j, "Stalled") == "True/NameTaken")
    live = await server.kube.get(DEPLOYMENT, server.namespace, NAMES["calc"])
    assert live["spec"]["template"]["spec"]["containers"][0]["name"] == "x"
    assert not await gone(server.kube, DEPLOYMENT, server.namespace, NAMES["shell"])


async def test_nothing_is_written_while_nothing_changes(connection: Connection, server: Server) -> None:
    """A template whose amounts the server writes in another way is no reason to apply it again."""
    clients: list[FaultyKube] = []

    def make(*args: Any, **kwargs: Any) -> FaultyKube:
        clients.append(FaultyKube(*args, **kwargs))
        return clients[-1]

    template = {
        "spec": {"tolerations": [], "containers": [{"name": "main", "resources": {"limits": {"cpu": "1000m"}}}]}
    }
    async with running(connection, options(server.namespace), make_kube=make) as operator:
        await started(server, environments=[calc(template=template), SHELL])
        (client,) = clients

        async def idle() -> bool:
            return bool(operator.queue.idle())

        await asyncio.sleep(1.0)
        await until(idle)  # events follow the status
        client.sent.clear()
        for _ in range(3):
            operator.queue.add((server.namespace, "demo"))
            await until(idle)
        sent = Counter(method for method, path in client.sent if "leases" not in path)
        listed = sum(path.endswith("/deployments") for _, path in client.sent)
    assert set(sent) == {"GET"}, client.sent
    assert listed >= 3
