"""The container `rewards` of the coordinator's pod: there when a reward runs code that is not ours, without rights."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Pod, parse_pod
from rljob_operator.policies.pods.manifests import render_pod
from tests.support.operator.harness import make_job

CODE = {"name": "tests", "kind": "Code"}
PYTHON = {"name": "own", "kind": "Python", "function": "my.rewards:length"}
OURS = {"name": "ours", "kind": "Python", "function": "rljob_runtime.rewards.builtin:has_number"}
JUDGE = {"name": "taste", "kind": "Judge", "judge": {"url": "http://judge/v1", "model": "m"}}
MATH = {"name": "right", "kind": "Math"}
TEMPLATE = {
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "example/own:2",
                "env": [{"name": "JUDGE_KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "api-key"}}}],
                "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
            },
            {"name": "logs", "image": "example/logs:1"},
            {
                "name": "rewards",
                "resources": {"limits": {"memory": "8Gi"}},
                "env": [{"name": "PYTHONPATH", "value": "/functions"}],
                "volumeMounts": [{"name": "functions", "mountPath": "/functions"}],
                "securityContext": {"runAsUser": 1000},
            },
        ],
        "volumes": [{"name": "keys", "secret": {"secretName": "k"}}, {"name": "functions", "configMap": {"name": "f"}}],
    }
}


def pod_of(job: RLJob, role: Role = Role.COORDINATOR) -> dict[str, Any]:
    manifest: dict[str, Any] = render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 1, Config("example/run:1"))
    return manifest


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {container["name"]: container for container in pod["spec"]["containers"]}


@pytest.mark.parametrize(
    ("rewards", "there"),
    [([MATH], False), ([JUDGE], False), ([OURS], False), ([CODE], True), ([PYTHON], True), ([MATH, OURS, CODE], True)],
)
def test_it_is_there_when_a_reward_needs_it(rewards: list[dict[str, Any]], there: bool) -> None:
    job = make_job(rewards=rewards)
    assert ("rewards" in containers(pod_of(job))) == there
    for role in (Role.TRAINER, Role.ROLLOUT):
        assert list(containers(pod_of(job, role))) == ["main"]


@pytest.mark.parametrize("template", [{}, TEMPLATE], ids=["plain", "with a template"])
def test_it_has_no_token_no_secret_and_nothing_of_the_coordinators(template: dict[str, Any]) -> None:
    pod = pod_of(make_job(rewards=[CODE], coordinator={"template": template}))
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    of_main, of_rewards = (
        {mount["name"] for mount in containers(pod)[name]["volumeMounts"]} for name in ("main", "rewards")
    )
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert {"rljob-token", "rljob-auth", "rljob-state", "rljob-tmp", "rljob-shm"} <= of_main
    assert of_main & of_rewards == {"rljob-rewards"}, "the socket, and nothing else, is shared"
    for name in of_rewards - {"functions"}:
        assert set(volumes[name]) == {"name", "emptyDir"}
    environment = {entry["name"] for entry in containers(pod)["rewards"]["env"]}
    assert environment <= {"HOME", "PYTHONPATH"}, "not the judge's key, nor who the pod is"
    assert "envFrom" not in containers(pod)["rewards"]


def test_it_is_locked_as_the_coordinator_is_and_bounded_by_its_template() -> None:
    pod = pod_of(make_job(rewards=[CODE], coordinator={"template": TEMPLATE}))
    assert list(containers(pod)) == ["main", "rewards", "logs"]
    found = containers(pod)["rewards"]
    assert found["image"] == "example/own:2", "functions are in the image that the coordinator has"
    assert (found["command"][-1], found["args"]) == ("rljob_runtime.entrypoints", ["rewards"])
    assert found["resources"] == {"limits": {"memory": "8Gi"}}
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1000,
    }
    assert {mount["mountPath"] for mount in found["volumeMounts"]} == {"/tmp", "/run/rljob", "/functions"}


def seen_with(pod: dict[str, Any], main: dict[str, Any], rewards: dict[str, Any]) -> Pod:
    statuses = [{"name": "main", "state": main}, {"name": "rewards", "state": rewards}]
    seen = parse_pod({**pod, "status": {"phase": "Running", "containerStatuses": statuses}})
    assert seen is not None
    return seen


RUNS: dict[str, Any] = {"running": {}}
KILLED: dict[str, Any] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def test_a_container_that_failed_before_its_life_line_takes_its_pod_along() -> None:
    """It is not started again, and the coordinator would wait for it without end."""
    pod = pod_of(make_job(rewards=[CODE]))
    seen = seen_with(pod, RUNS, KILLED)
    assert (seen.phase, seen.lingering) == ("Failed", True)
    assert seen.exit == "rewards: OOMKilled, exit code 137"
    left = seen_with(pod, RUNS, {"terminated": {"exitCode": 0}})
    assert (left.phase, left.lingering) == ("Running", False), "it has noticed first that the coordinator is done"
    done = seen_with(pod, {"terminated": {"exitCode": 0}}, KILLED)
    assert done.phase == "Succeeded", "what came after the coordinator is nothing"


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ROLLOUT])
def test_a_sidecar_of_that_name_is_a_sidecar(role: Role) -> None:
    template = {"spec": {"containers": [{"name": "main"}, {"name": "rewards", "image": "example/side:1"}]}}
    where = role.value.lower()
    pod = pod_of(make_job(rewards=[MATH], **{where: {"template": template}}), role)
    assert "rewards" in containers(pod)
    assert seen_with(pod, RUNS, KILLED).phase == "Running"


def test_a_coordinator_that_has_ended_takes_its_pod_along() -> None:
    """The container that lives a moment longer hides nothing."""
    pod = pod_of(make_job(rewards=[CODE]))
    ended = {"terminated": {"exitCode": 2, "message": "coordinator: the rewards container has ended"}}
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", "state": ended}, {"name": "rewards", "state": {"running": {}}}],
    }
    seen = parse_pod(pod)
    assert seen is not None
    assert (seen.phase, seen.lingering) == ("Failed", True)
    assert "the rewards container has ended" in seen.exit
