"""Manifests: pods and the objects beside a job."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.pods.manifests import render_pod, shape
from rljob_operator.policies.pods.owned_objects import children, service
from rljob_operator.writers.children import covers, is_as_wide
from tests.support.operator.harness import make_job

TEMPLATE = {
    "metadata": {"labels": {"team": "rl"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {
                "name": "main",
                "image": "example/own:2",
                "env": [{"name": "HOME", "value": "/data"}, {"name": "MINE", "value": "1"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"requests": {"cpu": "2"}},
                "securityContext": {"runAsUser": 1000},
            },
            {"name": "logs", "image": "example/logs:1"},
        ],
    },
}


def test_a_template_is_laid_over_ours() -> None:
    job = make_job(rollout={"template": TEMPLATE, "acceleratorsPerMachine": 4, "tensorParallelSize": 4})
    pod = render_pod(job, NewPod("rollout-1", Role.ROLLOUT, 3), 5, Config())
    main, logs = pod["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert pod["metadata"]["name"] == "demo-rollout-1-3"
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["labels"]["rljob.dev/epoch"] == "5"
    assert (main["image"], logs["name"]) == ("example/own:2", "logs")
    assert (env["HOME"], env["MINE"], env["RLJOB_MACHINE"]) == ("/data", "1", "rollout-1")
    assert len(env) == len(main["env"])
    assert main["resources"] == {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "4"}}
    assert main["securityContext"]["runAsUser"] == 1000
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"data", "rljob-tmp", "rljob-shm", "rljob-auth"} == {v["name"] for v in pod["spec"]["volumes"]}
    assert pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("role", list(Role))
def test_pods_are_confined(role: Role) -> None:
    pod = render_pod(make_job(), NewPod(f"{role.value.lower()}-0", role, 1), 0, Config())["spec"]
    main = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert main["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    tokens = [v for v in pod["volumes"] if "projected" in v]
    assert len(tokens) == (1 if role is Role.COORDINATOR else 0)


def test_claims_and_checkpoint() -> None:
    job = make_job(model={"source": "pvc://models/llama"}, checkpoint={"volumeClaimName": "state"})
    for role, folder in ((Role.COORDINATOR, "store"), (Role.TRAINER, "checkpoints"), (Role.ROLLOUT, None)):
        pod = render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 0, Config())["spec"]
        mounts = {m["mountPath"]: m for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/mnt/rljob/models"]["readOnly"] is True
        state = mounts.get("/var/lib/rljob")
        assert (state is None) == (folder is None)
        assert state is None or state["subPath"].endswith(f"/{folder}")


def test_shapes_change_with_what_users_ask_only() -> None:
    job, config = make_job(), Config()
    assert shape(job.spec, Role.ROLLOUT, config) == shape(make_job(rounds=9).spec, Role.ROLLOUT, config)
    other = make_job(rollout={"template": TEMPLATE})
    assert shape(job.spec, Role.ROLLOUT, config) != shape(other.spec, Role.ROLLOUT, config)
    assert shape(job.spec, Role.TRAINER, config) == shape(other.spec, Role.TRAINER, config)


def test_the_coordinator_may_touch_its_own_job_only() -> None:
    found = {(m["kind"], m["metadata"]["name"]): m for m in children(make_job(), 1, 2, Config())}
    role = found["Role", "demo-coordinator"]
    assert all(rule["resourceNames"] == ["demo"] for rule in role["rules"])
    verbs = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert ("rljobs", "patch") not in verbs
    assert ("rljobs/status", "patch") in verbs
    assert ("NetworkPolicy", "demo") in found
    assert ("NetworkPolicy", "demo") not in {
        (m["kind"], m["metadata"]["name"]) for m in children(make_job(), 1, 2, Config(network_policy=False))
    }


def test_the_coordinators_address_outlives_its_pods() -> None:
    """A headless Service's name means a pod's address, and is looked up again too late."""
    specs = [service(make_job(), incarnation)["spec"] for incarnation in (1, 2)]
    assert [spec["selector"]["rljob.dev/incarnation"] for spec in specs] == ["1", "2"]
    assert not any("clusterIP" in spec for spec in specs)


@pytest.mark.parametrize(
    ("live", "wanted", "covered"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 2}, {"a": 1}, False),
        ({"p": [{"port": 1, "protocol": "TCP"}]}, {"p": [{"port": 1}]}, True),
        ({"p": [{"port": 1}, {"port": 2}]}, {"p": [{"port": 1}]}, False),
        ({}, {"a": {}}, False),
    ],
)
def test_drift(live: Any, wanted: Any, covered: bool) -> None:
    assert covers(live, wanted) is covered


PORT = {"port": 443, "protocol": "TCP"}


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ([{"to": [{}]}], [{"to": [{}]}], True),
        ([{"to": [{}], "ports": [PORT]}], [{"to": [{}]}], False),
        ([{"to": [{}], "ports": []}], [{"to": [{}]}], True),
        ([{"to": [{}]}, {"to": [{}]}], [{"to": [{}]}], False),
    ],
    ids=["equal", "ports were named before", "ports are empty", "a rule more"],
)
def test_a_network_policy_has_nothing_more_than_it_should(live: Any, wanted: Any, same: bool) -> None:
    policies = [{"kind": "NetworkPolicy", "spec": {"egress": egress, "ingress": []}} for egress in (live, wanted)]
    assert is_as_wide(*policies) is same
    assert is_as_wide({}, {"kind": "Role"})
