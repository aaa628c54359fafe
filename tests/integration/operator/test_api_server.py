"""The operator in this process against a real API server; the tests play kubelet and coordinator."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rljob_kube.connection import Connection
from rljob_kube.resources import LEASE, POD, RLJOB, SECRET, SERVICE
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.event_filter import job_signature, pod_signature
from tests.support.operator.harness import (
    FaultyKube,
    Server,
    condition,
    gone,
    make_namespace,
    merged,
    options,
    patch,
    running,
    until,
)

pytestmark = pytest.mark.cluster

FIXED = {"demo-coordinator-0-1", "demo-trainer-0-1"}
ALL = FIXED | {"demo-rollout-0-1", "demo-rollout-1-1"}
RUNNING = "True/RoundsProgressing"


async def started(server: Server, **changes: Any) -> dict[str, Any]:
    """A job whose pods are all ready."""
    await server.apply_job(**changes)
    await server.until(lambda j: (j.get("status") or {}).get("members"))
    await server.start_all()
    return await server.until(lambda j: condition(j, "Ready") == RUNNING)


async def test_a_job_gets_its_pods_and_becomes_ready(server: Server, operator: Any) -> None:
    job = await started(server)
    assert set(await server.pods()) == ALL
    status = job["status"]
    assert status["phase"] == "Running"
    assert status["observedGeneration"] == job["metadata"]["generation"]
    assert status["relay"] == {"epoch": 1, "master": "rollout-0", "chain": ["rollout-0", "rollout-1"]}
    assert status["coordinator"]["address"] == f"demo-coordinator.{server.namespace}.svc"
    assert (condition(job, "Reconciling"), condition(job, "Stalled")) == (None, None)
    assert {(m["machine"], bool(m.get("ip")), bool(m.get("podUID"))) for m in status["members"]} == {
        (name, True, True) for name in ("coordinator-0", "trainer-0", "rollout-0", "rollout-1")
    }
    assert "finalizers" not in job["metadata"]
    assert "annotations" not in job["metadata"]
    await until(lambda: _has_events(server, {"Created": 1, "Running": 1, "RelayFormed": 1, "CheckpointNotDurable": 1}))


async def _has_events(server: Server, wanted: dict[str, int]) -> bool:
    found = await server.events()
    return all(found.get(reason) == count for reason, count in wanted.items())


async def test_everything_of_a_job_is_owned_by_it(server: Server, operator: Any) -> None:
    job = await started(server)
    uid = job["metadata"]["uid"]
    names = [(SERVICE, "demo-coordinator"), (LEASE, "demo"), (SECRET, f"demo-auth-{uid[:8]}")]
    names += [(POD, pod) for pod in ALL]
    for resource, name in names:
        (owner,) = (await server.kube.get(resource, server.namespace, name))["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    secret = await server.kube.get(SECRET, server.namespace, f"demo-auth-{uid[:8]}")
    assert set(secret["data"]) == {"ray-token", "relay-key"}


async def test_a_failed_pod_is_replaced_under_a_new_name(server: Server, operator: Any) -> None:
    await started(server)
    await server.fail_pod("demo-rollout-0-1")
    await server.until_pods(ALL | {"demo-rollout-0-2"})  # the failed one stays for its log
    await server.start_all()
    job = await server.until(lambda j: len(j["status"]["relay"]["chain"]) == 2 and j["status"]["relay"]["epoch"] >= 2)
    assert job["status"]["relay"]["chain"] == ["rollout-1", "rollout-0"]  # who stayed is first, the newcomer last
    assert job["status"]["replacements"]["total"] == 1
    assert job["status"]["replacements"]["byMachine"] == {"rollout-0": 1}
    assert job["status"]["rollout"]["restarts"] == 1
    await until(lambda: _has_events(server, {"MachineLost": 1, "MachineReplaced": 1}))


@pytest.mark.parametrize("pod", ["demo-coordinator-0-1", "demo-trainer-0-1", "demo-rollout-1-1"])
async def test_a_deleted_pod_is_replaced_and_costs_no_budget(server: Server, operator: Any, pod: str) -> None:
    await started(server)
    before = await server.kube.get(SERVICE, server.namespace, "demo-coordinator")
    await server.kill_pod(pod)
    await server.until_pods((ALL - {pod}) | {f"{pod[:-1]}2"})
    job = await server.until(lambda j: (j["status"]["replacements"] or {}).get("total") == 1)
    assert job["status"]["replacements"].get("byMachine", {}) == {}
    if pod.startswith("demo-coordinator"):
        service = await server.kube.get(SERVICE, server.namespace, "demo-coordinator")
        assert service["spec"]["selector"]["rljob.dev/incarnation"] == "2"
        assert service["spec"]["clusterIP"] == before["spec"]["clusterIP"] != "None"


async def test_scaling_up_and_down_with_a_drain(server: Server, operator: Any) -> None:
    await started(server)
    await _scale(server, 3)
    await server.until_pods(ALL | {"demo-rollout-2-1"})
    await server.start_all()
    job = await server.until(lambda j: condition(j, "Ready") == RUNNING and j["status"]["rollout"]["ready"] == 3)
    assert job["status"]["target"]["machines"] == ["rollout-0", "rollout-1", "rollout-2"]

    await _scale(server, 1)
    job = await server.until(lambda j: j["status"]["target"]["machines"] == ["rollout-0"])
    assert condition(job, "Reconciling") == "True/ScalingDown"
    revision = job["status"]["target"]["revision"]
    await server.report(event=1, applied=revision, drained=["rollout-2"])
    await server.until_pods(ALL)  # only the drained one goes
    await server.report(event=2, applied=revision, drained=["rollout-1", "rollout-2"])
    await server.until_pods(ALL - {"demo-rollout-1-1"})
    job = await server.until(lambda j: condition(j, "Reconciling") is None and len(j["status"]["members"]) == 3)
    assert job["status"]["replacements"]["total"] == 0
    assert "drainSince" not in job["status"]


async def _scale(server: Server, count: int) -> None:
    """As `kubectl scale` does it."""
    path = RLJOB.path(server.namespace, "demo", "scale")
    await patch(server.kube, path, {"spec": {"replicas": count}}, "application/merge-patch+json")


async def test_a_machine_that_does_not_drain_in_time_goes(server: Server, operator: Any) -> None:
    await started(server, runPolicy={"drainSeconds": 1})
    await _scale(server, 1)
    await server.until_pods(ALL - {"demo-rollout-1-1"})


async def test_suspend_and_resume_keep_the_report(server: Server, operator: Any) -> None:
    await started(server)
    await server.report(event=1, round=2, applied=1)
    await server.apply_job(suspend=True)
    job = await server.until(lambda j: j["status"]["target"]["phase"] == "Suspend")
    assert set(await server.pods()) == ALL  # the coordinator saves its state first
    revision = job["status"]["target"]["revision"]
    await server.report(event=2, round=2, applied=revision, stage="Checkpointing")
    await asyncio.sleep(0.3)
    assert set(await server.pods()) == ALL
    await server.report(event=3, round=2, applied=revision, stage="Suspended")
    await server.until_pods(set())
    job = await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
    assert job["status"]["phase"] == "Suspended"
    assert condition(job, "Ready") == "False/Suspended"
    assert "activeSince" not in job["status"]

    await server.apply_job(suspend=False)
    await server.until_pods({name[:-1] + "2" for name in ALL})
    await server.start_all()
    job = await server.until(lambda j: condition(j, "Ready") == RUNNING)
    assert job["status"]["runtime"]["round"] == 2
    assert job["status"]["replacements"]["total"] == 0
    assert job["status"]["relay"]["epoch"] == 2
    await until(lambda: _has_events(server, {"Suspended": 1, "Resumed": 1}))


async def test_a_job_born_suspended_has_no_pods(server: Server, operator: Any) -> None:
    await server.apply_job(suspend=True)
    await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
    assert await server.pods() == {}


@pytest.mark.parametrize(("outcome", "phase"), [("Complete", "Succeeded"), ("Failed", "Failed")])
async def test_the_coordinators_word_ends_the_job(server: Server, operator: Any, outcome: str, phase: str) -> None:
    await started(server)
    await server.report(event=1, finished={"outcome": outcome, "reason": "ItSaysSo", "message": "done"})
    job = await server.until(lambda j: j["status"]["phase"] == phase)
    assert condition(job, outcome) == "True/ItSaysSo"
    assert condition(job, "Ready") == ("True/Completed" if outcome == "Complete" else "False/Failed")
    assert condition(job, "Stalled") == (None if outcome == "Complete" else "True/ItSaysSo")
    await server.until_pods(set())
    assert job["status"]["completionTime"]


async def test_an_ended_job_is_deleted_after_its_time(server: Server, operator: Any) -> None:
    await started(server, runPolicy={"ttlSecondsAfterFinished": 1, "cleanPodPolicy": "None"})
    await server.report(event=1, finished={"outcome": "Complete"})
    await until(lambda: gone(server.kube, RLJOB, server.namespace, "demo"))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"startupDeadlineSeconds": 1}, "StartupDeadlineExceeded"),
        ({"activeDeadlineSeconds": 1}, "DeadlineExceeded"),
    ],
)
async def test_deadlines(server: Server, operator: Any, policy: dict[str, int], reason: str) -> None:
    await server.apply_job(runPolicy=policy)
    job = await server.until(lambda j: condition(j, "Failed") == f"True/{reason}")
    assert "spec.runPolicy." in next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Failed")
    await server.until_pods(set())


async def test_a_coordinator_that_fails_too_often_fails_the_job(server: Server, operator: Any) -> None:
    await server.apply_job(runPolicy={"backoffLimit": 0})
    await server.until_members(ALL)
    await server.fail_pod("demo-coordinator-0-1")
    job = await server.until(lambda j: condition(j, "Failed") == "True/BackoffLimitExceeded")
    assert job["status"]["replacements"]["byMachine"] == {"coordinator-0": 1}
    await server.until_pods({"demo-coordinator-0-1"})  # cleanPodPolicy Running leaves what has ended


MISSPELT = {"template": {"spec": {"containers": [{"name": "main", "resource": {}}]}}}
"""A mistake that the CRD's rules do not see: a template is a part of a PodSpec, of which the schema knows little."""


async def test_an_invalid_spec_is_reported_until_it_is_corrected(server: Server, operator: Any) -> None:
    await server.apply_job(rollout=MISSPELT)
    job = await server.until(lambda j: condition(j, "Stalled") == "True/InvalidSpec")
    message = next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Stalled")
    assert "spec.rollout.template.spec.containers[0].resource: {} is not a field" in message
    assert message.endswith("did you mean resources?")
    assert await server.pods() == {}
    await server.apply_job()
    await server.until_pods(ALL)
    await server.until(lambda j: condition(j, "Stalled") is None)


async def test_an_edit_that_is_invalid_leaves_the_running_job_alone(server: Server, operator: Any) -> None:
    before = await started(server)
    await server.apply_job(rollout=MISSPELT)
    job = await server.until(lambda j: condition(j, "Stalled") == "True/InvalidSpec")
    assert job["status"]["members"] == before["status"]["members"]
    assert set(await server.pods()) == ALL
    await server.apply_job()
    await server.until(lambda j: condition(j, "Ready") == RUNNING)
    assert set(await server.pods()) == ALL


async def test_no_node_is_large_enough(server: Server, operator: Any) -> None:
    await server.apply_job(rollout={"acceleratorsPerMachine": 8})
    await server.until_pods(ALL)
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    await server.set_pod(
        "demo-rollout-0-1",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    )
    job = await server.until(lambda j: condition(j, "Stalled") == "True/Unschedulable")
    stalled = next(c for c in job["status"]["conditions"] if c["type"] == "Stalled")
    assert "Insufficient nvidia.com/gpu" in stalled["message"]
    await server.start_all()
    await server.until(lambda j: condition(j, "Stalled") is None)


async def test_an_image_that_cannot_be_pulled_stalls_until_it_is_corrected(server: Server, operator: Any) -> None:
    await server.apply_job(rollout={"template": _image("example/wrong:1")})
    await server.until_pods(ALL)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    container = {"name": "main", "image": "example/wrong:1", "imageID": "", "ready": False, "restartCount": 0}
    await server.set_pod("demo-rollout-1-1", phase="Pending", containerStatuses=[{**container, "state": waiting}])
    job = await server.until(lambda j: condition(j, "Stalled") == "True/ImagePullFailed")
    assert await _columns(server, "State", "Reason") == ["Stalled", "ImagePullFailed"]
    assert "example/wrong:1" in next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Stalled")
    await server.apply_job(rollout={"template": _image("example/right:1")})
    await server.until_pods(FIXED | {"demo-rollout-0-2", "demo-rollout-1-2"})
    await server.until(lambda j: condition(j, "Stalled") is None)


async def _columns(server: Server, *names: str) -> list[str]:
    """What `kubectl get rljobs` shows of the only job."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = await server.kube._send("GET", RLJOB.path(server.namespace), None, {}, accept)
    shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    (row,) = table["rows"]
    return [row["cells"][shown.index(name)] for name in names]


def _image(name: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": name}]}}


async def test_a_changed_template_leaves_running_pods_alone(server: Server, operator: Any) -> None:
    await started(server)
    job = await server.apply_job(rollout={"template": _image("example/newer:1")})
    generation = job["metadata"]["generation"]
    job = await server.until(lambda j: j["status"]["observedGeneration"] == generation)
    assert job["status"]["rollout"]["updated"] == 0
    assert set(await server.pods()) == ALL


async def test_a_job_managed_by_another_controller_is_left_alone(server: Server, operator: Any) -> None:
    await server.apply_job("other", managedBy="kueue.x-k8s.io/multikueue")
    await started(server)
    assert "status" not in await server.job("other")
    assert await server.pods("other") == {}


async def test_a_name_that_is_taken(server: Server, operator: Any) -> None:
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-coordinator"}}
    body |= {"spec": {"clusterIP": "None"}}
    path, headers = SERVICE.path(server.namespace), {"Content-Type": "application/json"}
    await server.kube._send("POST", path, json.dumps(body).encode(), {}, headers)
    await server.apply_job()
    job = await server.until(lambda j: condition(j, "Stalled") == "True/NameTaken")
    assert "demo-coordinator" in next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Stalled")
    assert await server.pods() == {}


async def test_a_silent_coordinator_is_replaced(connection: Connection, server: Server) -> None:
    config = Config(runtime_image="example/runtime:1", coordinator_lease_seconds=1)
    async with running(connection, options(server.namespace, config=config)):
        await started(server)
        lease = await server.kube.get(LEASE, server.namespace, "demo")
        lease["spec"] |= {"holderIdentity": "demo-coordinator-0-1", "renewTime": "2026-01-31T12:00:00.000000Z"}
        await server.kube.replace(LEASE, lease)
        await server.until_pods((ALL - {"demo-coordinator-0-1"}) | {"demo-coordinator-0-2"})
        await until(lambda: _has_events(server, {"MachineLost": 1}))


async def test_namespaced_mode_and_a_second_namespace(connection: Connection, server: Server) -> None:
    other = Server(server.kube, f"{server.namespace}-b")
    await make_namespace(server.kube, other.namespace)
    async with running(connection, options(server.namespace)):
        await other.apply_job()
        await started(server)
        assert "status" not in await other.job()
    both = options("", namespaces=(server.namespace, other.namespace))
    async with running(connection, both):
        await other.until_pods(ALL)


async def test_a_new_job_of_an_old_name(server: Server, operator: Any) -> None:
    """No garbage collector runs here: the remains of the first job stay, as they may for a while anywhere."""
    await started(server)
    old = await server.job()
    await server.kube.delete(RLJOB, server.namespace, "demo")
    await until(lambda: gone(server.kube, RLJOB, server.namespace, "demo"))
    await server.apply_job()
    await asyncio.sleep(0.5)
    for resource, name in (
        (SERVICE, "demo-coordinator"),
        (LEASE, "demo"),
    ):
        await server.kube.delete(resource, server.namespace, name)
    await _delete_rest(server)
    fresh = {name[:-1] + "2" for name in ALL}
    await server.until_pods(ALL | fresh)
    job = await server.job()
    pods = await server.pods()
    assert job["metadata"]["uid"] != old["metadata"]["uid"]
    assert {pods[name]["metadata"]["ownerReferences"][0]["uid"] for name in fresh} == {job["metadata"]["uid"]}


async def _delete_rest(server: Server) -> None:
    from rljob_kube.resources import DISRUPTION_BUDGET, NETWORK_POLICY, ROLE, ROLE_BINDING, SERVICE_ACCOUNT

    rest = [(NETWORK_POLICY, "demo"), (DISRUPTION_BUDGET, "demo-rollout")]
    rest += [(resource, "demo-coordinator") for resource in (ROLE, ROLE_BINDING, SERVICE_ACCOUNT)]
    for resource, name in rest:
        await server.kube.delete(resource, server.namespace, name)


@pytest.fixture
def without_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new operator looks at every job once more after ten seconds, whatever a test has got to by then."""
    monkeypatch.setattr("rljob_operator.policies.base.periods.SECOND_RESYNC_SECONDS", 3600.0)


@pytest.mark.usefixtures("without_second_look")
async def test_git_applies_the_same_again_and_nothing_happens(connection: Connection, server: Server) -> None:
    found: list[FaultyKube] = []

    def spy(*args: Any, **counted: Any) -> FaultyKube:
        found.append(FaultyKube(*args, **counted))
        return found[-1]

    async with running(connection, options(server.namespace), spy) as operator:
        await started(server)
        await _quiet(operator, server)
        pods = {name: pod["metadata"]["uid"] for name, pod in (await server.pods()).items()}
        before = len(found[0].sent)
        for _ in range(3):
            await server.apply_job()
        await _scale(server, 2)  # the number it has
        await asyncio.sleep(0.5)
        await _quiet(operator, server)
        assert _requests(found[0], before) == []
        assert {name: pod["metadata"]["uid"] for name, pod in (await server.pods()).items()} == pods


@pytest.mark.usefixtures("without_second_look")
async def test_idle_reports_wake_no_job(connection: Connection, server: Server) -> None:
    found: list[FaultyKube] = []

    def spy(*args: Any, **counted: Any) -> FaultyKube:
        found.append(FaultyKube(*args, **counted))
        return found[-1]

    async with running(connection, options(server.namespace), spy) as operator:
        await started(server)
        await server.report(event=1, applied=1, progress=0.0)
        await _quiet(operator, server)
        before = len(found[0].sent)
        for number in range(100):
            await server.report(event=1, applied=1, progress=number / 100, tokensPerSecond=float(number))
        await asyncio.sleep(0.3)
        assert _requests(found[0], before) == []
        await server.report(event=2, applied=1, progress=0.5)  # the counterproof: an event does wake it
        await until(lambda: _woken(found[0], before))


async def _woken(kube: FaultyKube, before: int) -> bool:
    return bool(_requests(kube, before))


def _requests(kube: FaultyKube, before: int) -> list[tuple[str, str]]:
    """What was sent since, but for the look at all Leases that happens every few seconds."""
    return [(method, path) for method, path in kube.sent[before:] if not path.endswith("/leases")]


async def _quiet(operator: Any, server: Server) -> None:
    """Until the watch has shown everything as it is by now, and nothing is due any more, twice in a row."""

    async def idle() -> bool:
        job, pods = await server.job(), await server.pods()
        wanted = {("job", (server.namespace, "demo")): job_signature(job)}
        wanted |= {("pod", pod["metadata"]["uid"]): pod_signature(pod) for pod in pods.values()}
        shown = operator._watch._relevance._last
        if any(shown.get(what) != signature for what, signature in wanted.items()) or not operator.queue.idle():
            return False
        await asyncio.sleep(0.2)
        return bool(operator.queue.idle())

    await until(idle)


def test_the_kit_merges_deeply() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}) == {"a": {"b": 1, "c": 3}}
