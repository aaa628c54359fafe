"""PodGroups of other schedulers, accepted by their definitions on a real API server; nothing here schedules by them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rljob_api.spec import Gang
from rljob_kube.errors import ApiError
from rljob_kube.resources import RLJOB, Json
from rljob_operator.policies.gang import pod_groups
from rljob_operator.readers.owned_resources import POD_GROUPS
from tests.support.operator.gang_definitions import FIELDS, HEADERS, fields_of_source, installed, module
from tests.support.operator.harness import Server, condition, gone, make_job, until

pytestmark = pytest.mark.cluster

OTHERS = [Gang.COSCHEDULING, Gang.VOLCANO, Gang.KAI]


def group_of(kind: Gang, namespace: str, smallest: int) -> Json:
    """Rendered by the policy, with all that its scheduler is told."""
    rollout = {"machines": 4, "minMachines": smallest}
    job = make_job(rollout=rollout, scheduling={"gang": kind.value, "priorityClassName": "high"})
    told: dict[str, Any] = {"labels": {pod_groups.KAI_QUEUE: "team"}, "annotations": {pod_groups.VOLCANO_QUEUE: "team"}}
    metadata = job.metadata.model_copy(update={"namespace": namespace, **told})
    group = pod_groups.pod_group(job.model_copy(update={"metadata": metadata}))
    assert group is not None
    return group


@pytest.mark.parametrize("kind", OTHERS)
async def test_the_definition_accepts_the_group_and_no_other_field(server: Server, kind: Gang) -> None:
    group, api = group_of(kind, server.namespace, 2), POD_GROUPS[kind]
    strict = {"fieldValidation": "Strict"}
    async with installed(server, kind):
        path = api.path(server.namespace)
        made = await server.kube._send("POST", path, json.dumps(group).encode(), strict, HEADERS)
        assert made["spec"].items() >= group["spec"].items()
        if kind is not Gang.COSCHEDULING:
            assert (made["spec"]["queue"], made["spec"]["priorityClassName"]) == ("team", "high")
        larger = group_of(kind, server.namespace, 4)
        changed = await server.kube.merge(api, server.namespace, "demo", pod_groups.changes(larger))
        assert changed["spec"] == {**made["spec"], "minMember": 6}
        wrong = {**group, "metadata": {"name": "other"}, "spec": {**group["spec"], "minCount": 3}}
        with pytest.raises(ApiError, match="unknown field"):
            await server.kube._send("POST", path, json.dumps(wrong).encode(), strict, HEADERS)


def test_volcanos_fields_and_annotations_are_those_of_its_module() -> None:
    folder = module(Gang.VOLCANO)
    if folder is None:
        pytest.skip("volcano.sh/apis is not served here")
    sources = folder / "pkg/apis/scheduling/v1beta1"
    assert set(FIELDS[Gang.VOLCANO]) <= fields_of_source((sources / "types.go").read_text(), "PodGroupSpec")
    labels = (sources / "labels.go").read_text()
    assert '= "scheduling.k8s.io/group-name"' in labels
    assert 'QueueNameAnnotationKey = GroupName + "/queue-name"' in labels
    assert f"{pod_groups.SYSTEMS[Gang.VOLCANO].group}/queue-name" == pod_groups.VOLCANO_QUEUE


def test_coschedulings_label_is_that_of_its_module() -> None:
    folder = module(Gang.COSCHEDULING)
    if folder is None:
        pytest.skip("sigs.k8s.io/scheduler-plugins is not served here")
    assert (
        'PodGroupLabel = scheduling.GroupName + "/pod-group"'
        in (folder / "apis/scheduling/v1alpha1/types.go").read_text()
    )


@pytest.mark.parametrize("kind", [Gang.NATIVE, *OTHERS])
async def test_a_gang_whose_api_is_absent_is_told_and_begins_when_there_is_one(
    server: Server, operator: Any, kind: Gang
) -> None:
    """At any time: the operator is not restarted. Native's cannot be had on a server that has begun."""
    scheduling = {"gang": kind.value}
    body = {"metadata": {"labels": {pod_groups.KAI_QUEUE: "team"}}}
    await server.apply_job(scheduling=scheduling)
    job = await server.until(lambda j: condition(j, "Stalled") == "True/GangUnavailable")
    stalled = next(c for c in job["status"]["conditions"] if c["type"] == "Stalled")
    assert pod_groups.SYSTEMS[kind].install in stalled["message"]
    assert await server.pods() == {}
    if kind is Gang.NATIVE:
        await server.apply_job(scheduling={"gang": "None"}, suspend=True)
        await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
        await server.apply_job(scheduling={"gang": "None"})
        await server.until(lambda j: condition(j, "Stalled") is None)
        return
    await server.kube.merge(RLJOB, server.namespace, "demo", body)
    async with installed(server, kind):
        await server.until(lambda j: condition(j, "Stalled") is None)
        pods = await server.pods()
        assert len(pods) == 4
        assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {pod_groups.SYSTEMS[kind].scheduler}
        group = await server.kube.get(POD_GROUPS[kind], server.namespace, "demo")
        assert group["spec"]["minMember"] == 4
        (owner,) = group["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
        await server.start_all()
        await server.until(lambda j: condition(j, "Ready") == "True/RoundsProgressing")
        await server.fail_pod("demo-rollout-0-1")
        await until(lambda: _there(server, "demo-rollout-0-2"))
        marks = (await server.pods())["demo-rollout-0-2"]["metadata"]
        assert "scheduling.x-k8s.io/pod-group" not in marks["labels"]
        assert not {"scheduling.k8s.io/group-name", "pod-group-name"} & set(marks.get("annotations", {}))
    await until(lambda: gone(server.kube, POD_GROUPS[kind], server.namespace, "demo"))


async def _there(server: Server, pod: str) -> bool:
    await asyncio.sleep(0)
    return pod in await server.pods()
