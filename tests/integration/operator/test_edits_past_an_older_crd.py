"""Edits that may not be, behind a CRD that lets them through: refused by the operator, not followed, and taken back.

The CRD of this release refuses most of them at apply (`test_edits_refused.py`). Where a platform team installs the CRD
(`crds.install=false`), it may be of an older release than the operator, and let a field change that the operator's
release restricts. The one here has the present fields, and no rule about their changes. The first release's would not
do: it has a rule for each of its fields that must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.local_cluster.private.apiserver import api_server
from rljob_api.schema.crd import crd
from rljob_kube.connection import Connection
from tests.support.operator.harness import Server, condition, connect, options, running

pytestmark = pytest.mark.cluster


def without_rules_of_changes() -> dict[str, Any]:
    """The present CRD, with the rules that judge a spec alone."""
    found = crd()
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = spec["x-kubernetes-validations"]
    spec["x-kubernetes-validations"] = [rule for rule in rules if "oldSelf" not in rule["rule"]]
    assert len(spec["x-kubernetes-validations"]) < len(rules)
    return found


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """The admin's connection to a server of its own."""
    folder: Path = tmp_path_factory.mktemp("older-crd")
    with api_server(folder) as running_server:
        yield connect(running_server.kubeconfig, without_rules_of_changes())


ALL = {"demo-coordinator-0-1", "demo-trainer-0-1", "demo-rollout-0-1", "demo-rollout-1-1"}
RUNNING = "True/RoundsProgressing"
REFUSED = "True/InvalidSpec"


async def started(server: Server, **changes: Any) -> dict[str, Any]:
    """A job whose pods are all ready."""
    await server.apply_job(**changes)
    await server.until(lambda j: (j.get("status") or {}).get("members"))
    await server.start_all()
    return await server.until(lambda j: condition(j, "Ready") == RUNNING)


async def refused(server: Server, **changes: Any) -> dict[str, Any]:
    """The job after an edit, once that is refused."""
    generation = (await server.apply_job(**changes))["metadata"]["generation"]
    return await server.until(
        lambda j: condition(j, "Stalled") == REFUSED and j["status"]["observedGeneration"] == generation
    )


def message(job: dict[str, Any]) -> str:
    found: str = next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Stalled")
    return found


async def uids(server: Server) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in (await server.pods()).items()}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"data": {"seed": 7}}, "spec.data.seed: 7 is immutable, it was 0; set it back, or make a new RLJob"),
        ({"algorithm": {"learningRate": 2e-5}}, "it was 1e-06; set it back, or set spec.suspend: true"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy: 'kueue.x-k8s.io/multikueue' is immutable"),
        ({"checkpoint": {"volumeClaimName": "late"}}, "'late' is immutable, it was (absent)"),
        ({"rollout": {"acceleratorsPerMachine": 8}, "data": {"seed": 7}}, "spec.rollout.acceleratorsPerMachine: 8"),
    ],
)
async def test_a_forbidden_edit_is_told_and_taken_back(
    server: Server, operator: Any, edit: dict[str, Any], told: str
) -> None:
    before = await started(server)
    pods = await uids(server)
    job = await refused(server, **edit)
    assert told in message(job)
    assert condition(job, "Ready") == REFUSED.replace("True", "False")
    assert job["status"]["phase"] == "Running"
    assert condition(job, "Reconciling") is None
    for field in ("members", "target", "relay", "accepted"):
        assert job["status"][field] == before["status"][field]
    assert await uids(server) == pods
    await server.apply_job()
    await server.until(lambda j: condition(j, "Ready") == RUNNING and condition(j, "Stalled") is None)
    assert await uids(server) == pods
    await server.until_events({"InvalidSpec", "SpecAccepted"})


async def test_the_job_continues_as_accepted_with_any_operator(connection: Connection, server: Server) -> None:
    """A fresh operator knows what was accepted; it replaces a lost pod by one of the accepted kind."""
    wanted = options(server.namespace)
    edit = {"data": {"seed": 7}, "trainer": {"template": image("example/other:1")}, "rollout": {"machines": 5}}
    async with running(connection, wanted):
        await started(server)
    await server.apply_job(**edit)
    async with running(connection, wanted):
        job = await server.until(lambda j: condition(j, "Stalled") == REFUSED)
        assert "spec.data.seed" in message(job)
        assert "spec.trainer.template.spec.containers" in message(job)
        assert set(await server.pods()) == ALL
        await server.fail_pod("demo-trainer-0-1")
        await server.until_pods(ALL | {"demo-trainer-0-2"})
        pod = (await server.pods())["demo-trainer-0-2"]
        assert pod["spec"]["containers"][0]["image"] == "example/runtime:1"
        await server.start_all()
        job = await server.until(lambda j: j["status"]["trainer"]["ready"] == 1)
        assert condition(job, "Stalled") == REFUSED


def image(name: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": name}]}}


async def test_a_change_that_wants_suspension_goes_on_by_suspending(server: Server, operator: Any) -> None:
    await started(server)
    await refused(server, algorithm={"learningRate": 2e-5})
    await server.apply_job(algorithm={"learningRate": 2e-5}, suspend=True)
    job = await server.until(lambda j: j["status"]["target"]["phase"] == "Suspend")
    assert condition(job, "Stalled") is None
    await server.report(event=1, applied=job["status"]["target"]["revision"], stage="Suspended")
    await server.until_pods(set())
    await server.apply_job(algorithm={"learningRate": 2e-5})
    await server.until_pods({name[:-1] + "2" for name in ALL})
    await server.start_all()
    job = await server.until(lambda j: condition(j, "Ready") == RUNNING)
    assert '"learningRate":2e-05' in job["status"]["accepted"]["spec"]


async def test_a_suspended_job_tells_of_a_forbidden_edit_too(server: Server, operator: Any) -> None:
    await server.apply_job(suspend=True)
    await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
    job = await refused(server, suspend=True, model={"source": "/other"})
    assert condition(job, "Suspended") == "True/SuspendedByUser"
    assert message(job).startswith("spec.model.source: '/other' is immutable, it was 'package://rljob/toy'")
    await server.apply_job(suspend=True)
    await server.until(lambda j: condition(j, "Stalled") is None)


async def test_a_broken_edit_does_not_stop_repairs(server: Server, operator: Any) -> None:
    """No rule of a CRD sees into a pod's spec."""
    await started(server)
    job = await refused(server, rollout={"template": {"spec": {"nodeName": "node-1"}}})
    assert "spec.rollout.template.spec.nodeName" in message(job)
    await server.kill_pod("demo-rollout-1-1")
    await server.until_pods((ALL - {"demo-rollout-1-1"}) | {"demo-rollout-1-2"})
    await server.apply_job()
    await server.start_all()
    await server.until(lambda j: condition(j, "Ready") == RUNNING)
