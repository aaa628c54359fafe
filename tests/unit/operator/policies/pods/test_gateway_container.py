"""The container `gateway` of the coordinator's pod: there for jobs with environments, with the keys and no rights."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api import constants as c
from rljob_api.gateway_bounds import MIB, container_bytes
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import parse_pod
from rljob_operator.policies.pods.gateway import CPU_LIMIT, CPU_REQUEST, default_resources
from rljob_operator.policies.pods.manifests import charged, render_pod
from rljob_operator.policies.pods.owned_objects import service
from tests.support.operator.environment_jobs import calc, with_environments
from tests.support.operator.harness import make_job

Json = dict[str, Any]
CODE = {"name": "tests", "kind": "Code"}
USER = {
    "name": "gateway",
    "image": "example/own:2",
    "resources": {"limits": {"memory": "4Gi"}},
    "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
    "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
}


def pod_of(job: RLJob, role: Role = Role.COORDINATOR) -> Json:
    return render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 1, Config("example/run:1"))


def containers(pod: Json) -> dict[str, Json]:
    return {container["name"]: container for container in pod["spec"]["containers"]}


def test_it_is_there_for_jobs_with_environments() -> None:
    assert list(containers(pod_of(make_job()))) == ["main"]
    job = with_environments(rewards=[CODE])
    assert list(containers(pod_of(job))) == ["main", "rewards", "gateway"]
    for role in (Role.TRAINER, Role.ROLLOUT):
        assert list(containers(pod_of(job, role))) == ["main"]


def test_it_has_the_keys_and_nothing_of_the_coordinators() -> None:
    pod = pod_of(with_environments(rewards=[CODE]))
    mounts = {
        name: {one["mountPath"]: one["name"] for one in found["volumeMounts"]}
        for name, found in containers(pod).items()
    }
    gateway, main, rewards = mounts["gateway"], mounts["main"], mounts["rewards"]
    assert set(gateway) == {c.GATEWAY_DIR, c.GATEWAY_KEYS_DIR, c.TMP_DIR}
    assert set(gateway.values()) & set(main.values()) == {gateway[c.GATEWAY_DIR]}, (
        "one folder, and nothing else, is shared"
    )
    assert main[c.GATEWAY_DIR] == gateway[c.GATEWAY_DIR]
    assert not set(gateway.values()) & set(rewards.values())
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    secret = volumes[gateway[c.GATEWAY_KEYS_DIR]]["secret"]
    assert secret["secretName"] == "demo-environments-11111111"
    assert [item["key"] for item in secret["items"]] == [c.CAPABILITY_KEY, c.RUNNERS_KEY], "no runner's key"
    for path in (c.GATEWAY_DIR, c.TMP_DIR):
        assert volumes[gateway[path]]["emptyDir"] == {}


def test_it_is_locked_and_the_template_is_laid_over_it() -> None:
    found = containers(pod_of(with_environments()))["gateway"]
    assert (found["image"], found["args"]) == ("example/run:1", ["gateway"])
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {one["name"]: one["value"] for one in found["env"]} == {
        "HOME": "/tmp",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    assert {one["name"]: one["containerPort"] for one in found["ports"]} == {"gateway": 8000, "gateway-metrics": 8081}
    template = {"spec": {"containers": [USER], "volumes": [{"name": "certificates", "emptyDir": {}}]}}
    pod = pod_of(with_environments(coordinator={"template": template}))
    assert list(containers(pod)) == ["main", "gateway"], "it is no sidecar"
    own = containers(pod)["gateway"]
    assert (own["image"], own["resources"], own["args"]) == (
        "example/own:2",
        {"limits": {"memory": "4Gi"}},
        ["gateway"],
    )
    assert {one["name"]: one["value"] for one in own["env"]}["OMP_NUM_THREADS"] == "4"
    assert {one["mountPath"] for one in own["volumeMounts"]} >= {"/certificates", c.GATEWAY_DIR}


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ({}, {}),
        ({"limits": {"nvidia.com/gpu": "1"}}, {}),
        ({"limits": {"memory": "8Gi"}}, {"limits": {"memory": "2Gi"}}),
        ({"requests": {"cpu": "4", "memory": "8Gi"}}, {"requests": {"cpu": CPU_REQUEST, "memory": "512Mi"}}),
        (
            {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}},
            {"limits": {"cpu": CPU_LIMIT}, "requests": {"cpu": CPU_REQUEST}},
        ),
        (
            {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}},
            {"limits": {"cpu": CPU_LIMIT}, "requests": {"cpu": CPU_LIMIT}},
        ),
    ],
)
def test_it_has_resources_of_the_kinds_that_the_coordinator_has(main: Json, expected: Json) -> None:
    """A quota on a kind refuses a pod with a container that has none of it."""
    assert default_resources(main, with_environments().spec) == expected


def test_its_memory_follows_from_the_episodes_that_may_be_open() -> None:
    main = {"limits": {"memory": "16Gi"}, "requests": {"memory": "8Gi"}}
    job = with_environments(calc(episodesPerRunner=1024), algorithm={"promptsPerRound": 256, "responsesPerPrompt": 8})
    assert container_bytes(job.spec) == 3840 * MIB
    assert default_resources(main, job.spec) == {"limits": {"memory": "3840Mi"}, "requests": {"memory": "960Mi"}}
    template = {"spec": {"containers": [{"name": "main", "resources": main}]}}
    found = containers(pod_of(with_environments(calc(), coordinator={"template": template})))
    assert found["gateway"]["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"memory": "512Mi"}}


def test_a_quota_counts_it() -> None:
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]}}
    spec = charged(with_environments(coordinator={"template": template}), Role.COORDINATOR, Config())
    asked = {one["name"]: one.get("resources") for one in spec["containers"]}
    assert asked == {"main": {"requests": {"cpu": "4"}}, "gateway": {"requests": {"cpu": CPU_REQUEST}}}


def test_a_gateway_that_failed_takes_its_pod_along() -> None:
    """It is not started again, and no agent would have an answer."""
    pod = pod_of(with_environments())
    ends: Json = {"terminated": {"exitCode": 2, "reason": "Error"}}
    for code, phase in ((2, "Failed"), (0, "Running")):
        ends["terminated"]["exitCode"] = code
        statuses = [{"name": "main", "state": {"running": {}}}, {"name": "gateway", "state": ends}]
        seen = parse_pod({**pod, "status": {"phase": "Running", "containerStatuses": statuses}})
        assert seen is not None
        assert (seen.phase, seen.lingering) == (phase, phase == "Failed")


def test_its_port_is_in_the_service() -> None:
    ports = {one["name"]: one["port"] for one in service(with_environments(), 1)["spec"]["ports"]}
    assert ports["gateway"] == c.GATEWAY_PORT
    assert "gateway" not in {one["name"] for one in service(make_job(), 1)["spec"]["ports"]}
