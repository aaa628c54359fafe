"""Ray's head in the coordinator's pod: beside the token of the API server, and without it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec, RLJob
from rljob_api.constants import HEAD_CONTAINER
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Pod, parse_pod
from rljob_operator.policies.pods.capacity import amounts
from rljob_operator.policies.pods.manifests import charged, render_pod
from rljob_operator.policies.pods.ray_head import split
from tests.support.operator.harness import make_job

Json = dict[str, Any]
CONFIG = Config(runtime_image="example/run:1", image_pull_policy="Always")
TEMPLATE: Json = {
    "spec": {
        "initContainers": [{"name": "prepare", "image": "example/prepare:1"}],
        "containers": [
            {
                "name": "main",
                "image": "example/own:2",
                "resources": {"limits": {"memory": "8Gi", "cpu": "2"}, "requests": {"memory": "4Gi"}},
                "env": [
                    {"name": "JUDGE_KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "api-key"}}},
                    {"name": "RAY_gcs_server_rpc_server_thread_num", "value": "2"},
                    {"name": "RAY_SECRET", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "api-key"}}},
                ],
                "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
            },
            {"name": "logs", "image": "example/logs:1"},
        ],
        "volumes": [{"name": "keys", "secret": {"secretName": "k"}}],
    }
}


def pod_of(job: RLJob, role: Role = Role.COORDINATOR) -> Json:
    return render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 1, CONFIG)


def templated(template: Json) -> RLJob:
    return make_job(coordinator={"template": template}, rewards=[{"name": "tests", "kind": "Code"}])


def head_of(pod: Json) -> Json:
    found: Json = pod["spec"]["initContainers"][-1]
    assert found["name"] == HEAD_CONTAINER
    return found


both = pytest.mark.parametrize("template", [{}, TEMPLATE], ids=["plain", "with a template"])


@both
def test_who_has_rays_token_has_not_the_api_servers(template: Json) -> None:
    """Every holder of the job's Ray token can start a process on the head."""
    spec = pod_of(templated(template))["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    with_token = {name for name, volume in volumes.items() if "serviceAccountToken" in str(volume)}
    assert with_token == {"rljob-token"}
    holders = [
        container["name"]
        for container in (*spec.get("initContainers", []), *spec["containers"])
        if with_token & {mount["name"] for mount in container.get("volumeMounts", [])}
    ]
    assert holders == ["main"]
    assert spec["automountServiceAccountToken"] is False
    assert "shareProcessNamespace" not in spec, "they would see each other's files below /proc"


@both
def test_the_head_has_the_folder_token_and_tables_of_ray_alone(template: Json) -> None:
    pod = pod_of(templated(template))
    main, head = pod["spec"]["containers"][0], head_of(pod)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {(mount["name"], mount["mountPath"], mount.get("subPath")) for mount in head["volumeMounts"]} == {
        ("rljob-head-tmp", "/tmp", None),
        ("rljob-ray", "/tmp/ray", None),
        ("rljob-head-shm", "/dev/shm", None),
        ("rljob-head-auth", "/etc/rljob/auth", None),
        ("rljob-state", "/var/lib/rljob/ray", "demo-11111111-2222/store/ray"),
    }
    secret = volumes["rljob-auth"]["secret"]
    assert volumes["rljob-head-auth"]["secret"] == {**secret, "items": [{"key": "ray-token", "path": "ray-token"}]}
    mounts = {mount["name"] for mount in main["volumeMounts"]}
    assert mounts & {mount["name"] for mount in head["volumeMounts"]} == {"rljob-ray", "rljob-state"}
    assert {"mountPath": "/tmp/ray", "name": "rljob-ray"} in main["volumeMounts"]
    names = {entry["name"] for entry in head["env"]}
    settings = {"RAY_gcs_server_rpc_server_thread_num"} if template else set()
    assert names == {"HOME", "POD_IP"} | settings, "no secret of the coordinator's"
    assert "envFrom" not in head


def test_the_head_starts_before_and_ends_after_the_coordinator() -> None:
    pod = pod_of(templated(TEMPLATE))
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["prepare", HEAD_CONTAINER]
    assert [container["name"] for container in pod["spec"]["containers"]] == ["main", "rewards", "logs"]
    head = head_of(pod)
    assert head["restartPolicy"] == "Always", "a sidecar"
    assert (head["image"], head["imagePullPolicy"]) == ("example/own:2", "Always")
    assert (head["command"][-1], head["args"]) == ("rljob_runtime.entrypoints", ["head"])
    assert head["securityContext"] == pod["spec"]["containers"][1]["securityContext"], "locked as every one of ours"


def test_it_is_the_coordinators_user_and_has_none_of_its_privileges() -> None:
    """The driver opens the sockets of the raylet."""
    context = {"runAsUser": 1000, "runAsGroup": 1000, "privileged": True}
    found = head_of(pod_of(templated({"spec": {"containers": [{"name": "main", "securityContext": context}]}})))
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1000,
        "runAsGroup": 1000,
    }


def container(**resources: Json) -> Json:
    return {"name": "main", "resources": resources}


SPLITS: dict[str, tuple[Json, Json, Json]] = {
    "nothing": ({}, {}, {}),
    "a limit": (
        {"limits": {"memory": "8Gi"}},
        {"limits": {"memory": "6Gi"}},
        {"limits": {"memory": "2Gi"}},
    ),
    "a request": (
        {"requests": {"cpu": "2"}},
        {"requests": {"cpu": "1900m"}},
        {"requests": {"cpu": "100m"}},
    ),
    "not more than half of it": (
        {"limits": {"memory": "1Gi"}, "requests": {"memory": "512Mi", "cpu": "0.1"}},
        {"limits": {"memory": "512Mi"}, "requests": {"memory": "256Mi", "cpu": "50m"}},
        {"limits": {"memory": "512Mi"}, "requests": {"memory": "256Mi", "cpu": "50m"}},
    ),
    "guaranteed": (
        {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}},
        {"limits": {"cpu": "3", "memory": "6Gi"}, "requests": {"cpu": "3", "memory": "6Gi"}},
        {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}},
    ),
    "no request is above its limit": (
        {"limits": {"cpu": "2"}, "requests": {"cpu": "1900m"}},
        {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        {"limits": {"cpu": "1"}, "requests": {"cpu": "900m"}},
    ),
    "what the head does not take": (
        {"limits": {"example.com/nic": "1", "ephemeral-storage": "9Gi"}},
        {"limits": {"example.com/nic": "1", "ephemeral-storage": "9Gi"}},
        {},
    ),
}


@pytest.mark.parametrize(("whole", "main", "head"), SPLITS.values(), ids=SPLITS)
def test_its_resources_are_a_part_of_the_coordinators(whole: Json, main: Json, head: Json) -> None:
    pod = pod_of(templated({"spec": {"containers": [container(**whole)]}}))
    assert pod["spec"]["containers"][0].get("resources", {}) == main
    assert head_of(pod).get("resources", {}) == head


def test_resources_of_its_own_are_in_addition() -> None:
    own = {"name": HEAD_CONTAINER, "resources": {"limits": {"memory": "1Gi"}}}
    main = container(limits={"memory": "8Gi"})
    job = templated({"spec": {"containers": [main, own]}})
    pod = pod_of(job)
    assert [one["name"] for one in pod["spec"]["containers"]] == ["main", "rewards"]
    assert pod["spec"]["containers"][0]["resources"] == main["resources"]
    assert head_of(pod)["resources"] == own["resources"]
    assert head_of({"spec": charged(job, Role.COORDINATOR, CONFIG)})["resources"] == own["resources"]


def test_a_quota_counts_what_an_earlier_operator_asked_for() -> None:
    """Else the Workloads of running jobs would be out of date with a new operator."""
    job = templated(TEMPLATE)
    found = charged(job, Role.COORDINATOR, CONFIG)
    assert [one["name"] for one in found["initContainers"]] == ["prepare"]
    assert found["containers"][0]["resources"] == TEMPLATE["spec"]["containers"][0]["resources"]


CPU = st.integers(2, 64_000).map(lambda milli: Decimal(milli) / 1000)
MEMORY = st.integers(2, 1 << 42).map(Decimal)


@given(limit=CPU | st.none(), request=CPU | st.none(), memory=MEMORY | st.none(), less=st.floats(0, 1))
def test_the_parts_add_up_and_stay_of_their_class(
    limit: Decimal | None, request: Decimal | None, memory: Decimal | None, less: float
) -> None:
    if limit is not None and request is not None:
        request = min(limit, request)
    limits = {"cpu": limit, "memory": memory}
    requests = {"cpu": request, "memory": None if memory is None else Decimal(int(memory * Decimal(less)))}
    whole = {
        kind: {name: str(amount) for name, amount in amounts_.items() if amount is not None}
        for kind, amounts_ in (("limits", limits), ("requests", requests))
    }
    main, head = split(whole)
    read = {kind: [amounts(one.get(kind) or {}) for one in (main, head)] for kind in whole}
    for kind, wholes in (("limits", limits), ("requests", requests)):
        for name, amount in wholes.items():
            parts = [part[name] for part in read[kind] if name in part]
            assert sum(parts) == (amount or 0), (kind, name)
            assert all(part >= 0 for part in parts)
    for requested, limited in zip(read["requests"], read["limits"], strict=True):
        assert all(amount <= limited[name] for name, amount in requested.items() if name in limited)
    if limit is not None and limit == request:
        assert [part["cpu"] for part in read["limits"]] == [part["cpu"] for part in read["requests"]]


def test_a_users_own_coordinator_program_has_no_head() -> None:
    found = pod_of(templated({"spec": {"containers": [{"name": "main", "command": ["sleep", "9"]}]}}))
    assert "initContainers" not in found["spec"]
    assert "rljob-ray" not in {volume["name"] for volume in found["spec"]["volumes"]}


REFUSED = {
    "an init container of that name": (
        {"initContainers": [{"name": HEAD_CONTAINER, "image": "i:1"}]},
        "initContainers[0].name",
        "that container is the operator's, for the head of Ray",
    ),
    "where there is none": (
        {"containers": [{"name": "main", "command": ["sleep"]}, {"name": HEAD_CONTAINER, "image": "i:1"}]},
        "containers[1].name",
        "that container is the operator's, for the head of Ray",
    ),
    "a mount over what they share": (
        {"containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/tmp/ray"}]}]},
        "containers[0].volumeMounts[0].mountPath",
        "is the operator's; mount it elsewhere",
    ),
}


@pytest.mark.parametrize(("spec", "path", "advice"), REFUSED.values(), ids=REFUSED)
def test_what_is_in_its_way_is_refused(spec: Json, path: str, advice: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        templated({"spec": spec})
    (error,) = caught.value.errors
    assert error.path == f"spec.coordinator.template.spec.{path}"
    assert advice in error.message


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ROLLOUT])
def test_a_sidecar_of_that_name_is_a_sidecar_elsewhere(role: Role) -> None:
    side = {"name": HEAD_CONTAINER, "image": "i:1"}
    job = make_job(**{role.value.lower(): {"template": {"spec": {"containers": [{"name": "main"}, side]}}}})
    assert [one["name"] for one in pod_of(job, role)["spec"]["containers"]] == ["main", HEAD_CONTAINER]


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ROLLOUT])
def test_the_other_pods_have_none(role: Role) -> None:
    assert "initContainers" not in pod_of(templated({}), role)["spec"]


def coordinator_with(phase: str, main: Json, head: Json) -> Pod:
    pod = pod_of(templated({}))
    pod["status"] = {
        "phase": phase,
        "containerStatuses": [{"name": "main", "state": main}],
        "initContainerStatuses": [{"name": HEAD_CONTAINER, "state": head}],
    }
    seen = parse_pod(pod)
    assert seen is not None
    return seen


FAILED: Json = {"terminated": {"exitCode": 2, "message": "coordinator: ray's head ended"}}
STOPPED: Json = {"terminated": {"exitCode": 143, "reason": "Error"}}


def test_the_pods_last_words_are_the_coordinators() -> None:
    """The head ends after it, by a signal."""
    seen = coordinator_with("Failed", FAILED, STOPPED)
    assert seen.exit.startswith("main: Error, exit code 2: coordinator: ray's head ended")


def test_a_coordinator_that_has_ended_is_replaced_while_its_head_ends() -> None:
    """The kubelet ends it, so no client has to delete the pod, and its log stays."""
    seen = coordinator_with("Running", FAILED, {"running": {}})
    assert (seen.phase, seen.lingering) == ("Failed", False)


def test_a_head_that_is_started_again_is_the_coordinators_business() -> None:
    seen = coordinator_with("Running", {"running": {}}, STOPPED)
    assert (seen.phase, seen.live) == ("Running", True)
