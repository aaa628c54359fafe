"""The applier: what it deletes and writes, and what it knows of its own writes."""

from __future__ import annotations

import json
from typing import Any

from rljob_api.status import Role
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.event_recorder import EventRecorder
from rljob_kube.resources import DISRUPTION_BUDGET
from rljob_operator.api_access import ApiAccess
from rljob_operator.applier import Applier, WrittenObjects
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod, Removal
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.creation import Creation, Drafts
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.pods.manifests import render_role
from rljob_operator.policies.pods.owned_objects import children, disruption_budget
from rljob_operator.readers.observer import PodLister
from rljob_operator.readers.owned_resources import RESOURCES
from rljob_operator.seals import Seals
from tests.support.operator.harness import NOW, make_job


class Requests(KubeClient):
    """A client whose requests are kept and not sent."""

    def __init__(self) -> None:
        super().__init__(Credentials(Connection("https://unused")))
        self.sent: list[tuple[str, str, Any]] = []

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> dict[str, Any]:
        self.sent.append((method, path, json.loads(data or b"null")))
        return {}


async def test_only_the_leader_deletes_a_pod_and_only_the_judged_one() -> None:
    client = Requests()
    asked: list[int] = []

    async def confirm_leader() -> None:
        asked.append(len(client.sent))

    pod = Pod("demo-rollout-0-1", "uid-7", Role.ROLLOUT, "rollout-0", 1)
    applier = Applier(
        ApiAccess(client, EventRecorder(client), Metrics()),
        confirm_leader,
        WrittenObjects(lambda pods: None),
        Seals(client),
    )
    await applier.apply(make_job(), Plan(removals=(Removal(pod, "Superseded"),)), NOW)
    ((method, path, body),) = client.sent
    assert (method, path) == ("DELETE", "/api/v1/namespaces/default/pods/demo-rollout-0-1")
    assert body["preconditions"] == {"uid": "uid-7"}
    assert "gracePeriodSeconds" not in body
    assert asked == [0]


async def test_by_force_too_only_the_pod_that_was_judged() -> None:
    client, metrics = Requests(), Metrics()

    async def confirm_leader() -> None:
        return

    pod = Pod("demo-rollout-0-1", "uid-7", Role.ROLLOUT, "rollout-0", 1)
    applier = Applier(
        ApiAccess(client, EventRecorder(client), metrics),
        confirm_leader,
        WrittenObjects(lambda pods: None),
        Seals(client),
    )
    await applier.apply(make_job(), Plan(removals=(Removal(pod, "NodeFenced", 0), Removal(pod, "JobEnded", 15))), NOW)
    bodies = [body for _, _, body in client.sent]
    assert [body["gracePeriodSeconds"] for body in bodies] == [0, 15]
    assert all(body["preconditions"] == {"uid": "uid-7"} for body in bodies)
    assert metrics.registry.get_sample_value("rljob_force_deleted_pods_total") == 1


class Clerk(Requests):
    """Gives what is created a resource version, and notes how old a list may be."""

    def __init__(self) -> None:
        super().__init__()
        self.floors: list[str] = []

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> dict[str, Any]:
        await super()._send(method, path, data, params, headers)
        if method == "GET":
            self.floors.append(params["resourceVersion"])
            return {"items": [], "metadata": {}}
        return {"metadata": {"resourceVersion": str(40 + len(self.sent))}}


async def test_no_look_at_pods_is_older_than_those_it_made_itself() -> None:
    client = Clerk()
    pods = PodLister(client)

    async def confirm_leader() -> None:
        return

    job = make_job()
    new = NewPod("rollout-0", Role.ROLLOUT, 1)
    drafts = Drafts(job, Observed(), ("rollout-0",), {Role.ROLLOUT: render_role(job, Role.ROLLOUT, 1, Config(), "")})
    applier = Applier(
        ApiAccess(client, EventRecorder(client), Metrics()), confirm_leader, WrittenObjects(pods.observe), Seals(client)
    )
    await pods.pods("default", "demo")
    await applier.apply(job, Plan(creations=(Creation(new, drafts),)), NOW)
    await pods.pods("default", "demo")
    assert client.floors == ["0", "42"]


def test_a_disruption_budget_lets_one_rollout_machine_go() -> None:
    budget = disruption_budget(make_job(), 3)
    assert budget["apiVersion"] == DISRUPTION_BUDGET.api_version == "policy/v1"
    assert budget["spec"]["minAvailable"] == 2
    assert budget["spec"]["selector"]["matchLabels"] == {"rljob.dev/job": "demo", "rljob.dev/role": "rollout"}


def test_every_object_beside_a_job_is_written_where_its_kind_is_kept() -> None:
    for manifest in children(make_job(), 1, 3, Config()):
        assert manifest["apiVersion"] == RESOURCES[manifest["kind"]].api_version
