"""The operator as a process, beside the real scheduler and the real controllers. kwok stands in for the kubelets, and
`stand_in_coordinator.py` for the coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.local_cluster.private.kwok import FakeNodes
from tests.support.operator.environment_jobs import CALC, calc
from tests.support.operator.fake_life import JOB, Life, install_crd, own_life
from tests.support.operator.harness import condition, five_minutes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FIRST = ("coordinator-0-1", "trainer-0-1", "rollout-0-1", "rollout-1-1")
KINDS = (
    "deployments,pods,services,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets,secrets"
)


@pytest.fixture(scope="module")
def with_crd(fake_nodes: FakeNodes) -> FakeNodes:
    install_crd(fake_nodes.server)
    return fake_nodes


@pytest.fixture
def life(with_crd: FakeNodes, tmp_path: Path) -> Iterator[Life]:
    with own_life(with_crd, tmp_path / "operator.log") as found:
        yield found


def test_pods_die_with_and_without_an_operator(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.fail(f"{JOB}-rollout-1-1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-1", "rollout-1-2")
    life.kubectl("delete", "pod", f"{JOB}-coordinator-0-1", "--grace-period=0", "--force", "--wait=false")
    life.until_machines("coordinator-0-2", "trainer-0-1", "rollout-0-1", "rollout-1-2")
    life.until_ready(2)

    life.operator.kill()
    life.fail(f"{JOB}-trainer-0-1")
    life.kubectl("delete", "pod", f"{JOB}-rollout-0-1", "--now", "--wait=true")
    life.until_machines("coordinator-0-2", "rollout-1-2")
    before, reached = life.pods(), life.job()["status"]["runtime"]["round"]
    life.until("the coordinator goes on alone", lambda: life.job()["status"]["runtime"]["round"] > reached)
    life.operator.start()
    life.until_machines("coordinator-0-2", "trainer-0-2", "rollout-0-2", "rollout-1-2")
    life.until_ready(2)
    after = life.pods()
    assert {name: uid for name, uid in after.items() if name in before} == before
    status = life.job()["status"]
    assert status["replacements"]["total"] == 4
    assert status["replacements"]["byMachine"] == {"rollout-1": 1, "trainer-0": 1}  # deletions cost no budget
    assert len(status["relay"]["chain"]) == 2
    life.until_events("MachineLost", "MachineReplaced")


def test_suspend_resume_and_edits(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    pods = life.pods()

    with pytest.raises(AssertionError, match=r"data\.seed is immutable; make a new RLJob"):
        life.apply(data={"seed": 7})
    life.operator.kill()
    life.operator.start()
    life.fail(f"{JOB}-rollout-0-1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-2", "rollout-1-1")
    life.until_ready(2)
    kept = {name: uid for name, uid in life.pods().items() if "rollout-0" not in name}
    assert kept.items() <= pods.items()

    life.apply(suspend=True)
    life.until("suspended", lambda: condition(life.job(), "Suspended") == "True/SuspendedByUser")
    assert life.pods() == {}
    reached = life.job()["status"]["runtime"]["round"]
    life.apply(algorithm={"learningRate": 2e-5})
    life.until_machines("coordinator-0-2", "trainer-0-2", "rollout-0-3", "rollout-1-2")
    life.until_ready(2)
    life.until("it goes on where it was", lambda: life.job()["status"]["runtime"]["round"] > reached)
    assert '"learningRate":2e-05' in life.job()["status"]["accepted"]["spec"]
    life.until_events("Suspended", "Resumed")


def test_runners_of_environments(life: Life) -> None:
    """The controller of Deployments is real: it makes the pods, and its conditions are what the status tells."""

    def wanted(pods: int) -> bool:
        counts = (life.job().get("status") or {}).get("environments")
        return counts == [{"name": "calc", "runners": pods, "ready": pods}] and len(_runners(life)) == pods

    life.apply(environments=[CALC])
    life.until_ready(2)
    life.until("two runners", lambda: wanted(2))
    first = _runners(life)
    life.kubectl("delete", "pod", *first, "--now", "--wait=true")
    life.until("others", lambda: wanted(2) and not first & _runners(life))
    assert set(life.pods()) == {f"{JOB}-{one}" for one in FIRST}, "runners are no machines"

    before = _runners(life)
    life.apply(environments=[calc(template={"metadata": {"annotations": {"example.com/edit": "1"}}})])
    life.until("each pod has the edit", lambda: wanted(2) and not before & _runners(life))

    life.apply(environments=[CALC], suspend=True)
    life.until("suspended", lambda: condition(life.job(), "Suspended") == "True/SuspendedByUser")
    assert (life.pods(), _runners(life)) == ({}, set())
    quota = {"hard": {"pods": "5"}}
    life.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": quota})
    path = "jsonpath={.status.hard.pods}"
    life.until("the quota", lambda: life.kubectl("get", "resourcequota", "q", "-o", path) == "5")
    life.apply(environments=[CALC])
    life.until("the reason", lambda: condition(life.job(), "Stalled") == "True/QuotaExceeded")
    assert life.job()["status"]["environments"][0]["runners"] == 2
    life.kubectl("delete", "resourcequota", "q")
    life.until("two runners after all", lambda: wanted(2), 300)
    life.until("nothing stalls it", lambda: condition(life.job(), "Stalled") is None)


def _runners(life: Life) -> set[str]:
    """Names of the runners that are not being deleted."""
    found = life.items("pods", f"rljob.dev/environments-of={JOB}")
    return {pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def test_a_namespace_goes_while_no_operator_runs(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.operator.kill()
    life.kubectl("delete", "namespace", life.kubectl.namespace, "--timeout=120s")
    assert "NotFound" in life.kubectl("get", "namespace", life.kubectl.namespace, check=False)


def test_a_node_falls_silent(life: Life) -> None:
    """Its machine moves to another node; the lost pod lasts until its node is back, and hinders no other."""
    life.operator.kill()
    life.operator.start(everywhere=True)
    life.apply(failurePolicy={"nodeFailure": {"graceSeconds": 1}}, rollout={"template": five_minutes()})
    life.until_ready(2)
    lost = f"{JOB}-rollout-1-1"
    node = life.kubectl.get("pod", lost)["spec"]["nodeName"]
    others = {name for name in life.pods() if life.kubectl.get("pod", name)["spec"]["nodeName"] != node}
    life.nodes.hang(node)
    try:
        life.until("the replacement", lambda: f"{JOB}-rollout-1-2" in life.pods())
        life.until_ready(2)
        assert life.kubectl.get("pod", f"{JOB}-rollout-1-2")["spec"]["nodeName"] != node
        assert "deletionTimestamp" in life.kubectl.get("pod", lost)["metadata"]
        assert others <= set(life.pods())
        memory = life.job()["status"]["replacements"]
        assert [avoided["name"] for avoided in memory["avoidedNodes"]] == [node]
        assert memory["backoff"]["rollout-1"]["reason"] == "NodeNotReady"
    finally:
        life.nodes.recover(node)
    life.until("the lost pod's end", lambda: not life.kubectl("get", "pod", lost, "--ignore-not-found"))
    life.until_events("MachineLost", "NodeAvoided", "MachineReplaced")


@pytest.mark.slow
def test_below_its_quota_a_job_keeps_nothing_that_waits_for_a_coordinator(life: Life) -> None:
    """The quota is real, and a neighbour's pod takes the place of the coordinator that was lost."""

    def quota(pods: int) -> None:
        hard = {"hard": {"pods": str(pods)}}
        life.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": hard})
        path = "jsonpath={.status.hard.pods}"
        life.until("the quota", lambda: life.kubectl("get", "resourcequota", "q", "-o", path) == str(pods))

    def stalled() -> str:
        conditions = (life.job().get("status") or {}).get("conditions") or []
        return next((c["message"] for c in conditions if c["type"] == "Stalled"), "")

    quota(0)
    life.apply()
    life.until("it is told", lambda: "; 3 more pods are not created before it" in stalled())
    assert life.pods() == {}
    row = life.kubectl("get", "rljob", JOB)
    assert "Stalled" in row
    assert "QuotaExceeded" in row
    quota(2)
    life.until_machines("coordinator-0-1", "trainer-0-1")
    life.until("it is told of the rest", lambda: stalled().startswith("rollout-0, rollout-1: "))
    quota(4)
    life.until_ready(2)

    life.operator.kill()
    life.kubectl("delete", "pod", f"{JOB}-coordinator-0-1", "--grace-period=0", "--force", "--wait=true")
    neighbour = {"containers": [{"name": "main", "image": "example/neighbour:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbour"}, "spec": neighbour}
    life.until(
        "the neighbour has the place",
        lambda: "created" in life.kubectl("create", "-f", "-", stdin=json.dumps(pod), check=False),
    )
    life.operator.start()
    life.until("it is told again", lambda: stalled().startswith("coordinator-0: "))
    life.until_events("MachinesGivenBack")
    life.until("a place for the coordinator", lambda: f"{JOB}-coordinator-0-2" in life.pods())
    assert f"{JOB}-trainer-0-1" in life.pods(), "the machines' places were enough"
    life.kubectl("delete", "pod", "neighbour", "--now")
    life.until_ready(2)


# The last one: a garbage collector sees a new kind of owner 30 s after its server has begun.
def test_apply_describe_scale_and_delete(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.until_events("Running")
    told = life.kubectl("describe", "rljob", JOB)
    for words in ("RoundsProgressing", "ChainFormed", "the job is ready", "rollout-1"):
        assert words in told
    life.kubectl("scale", "rljob", JOB, "--replicas=3")
    life.until_ready(3)
    life.kubectl("scale", "rljob", JOB, "--replicas=1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-1")
    life.until_ready(1)
    life.until_events("RolloutScaledUp", "RolloutScaledDown", "RelayRebuilt")
    assert life.job()["status"]["replacements"]["total"] == 0
    life.kubectl("delete", "rljob", JOB, "--timeout=60s")
    life.until("everything of the job is gone", lambda: JOB not in life.kubectl("get", KINDS, "-o", "name"))
