"""Pod templates pass through whole: what a user writes is in the pods, and what may not be written is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api import InvalidSpec, load
from rljob_api.constants import HEAD_CONTAINER
from rljob_api.parsing import pod_schema
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.policies.pods.ray_head import split
from tests.support.operator.harness import make_job, manifest

SPREAD = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
PASSED: dict[str, Any] = {
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "automountServiceAccountToken": False,
    "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "evictionResponders": [{"name": "example.com/saver", "priority": 1}],
    "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["models.example.com"]}],
    "hostUsers": False,
    "imagePullSecrets": [{"name": "registry"}],
    "initContainers": [{"name": "fetch", "image": "example/fetch:1", "restartPolicy": "Always"}],
    "nodeSelector": {"pool": "gpu"},
    "os": {"name": "linux"},
    "overhead": {"memory": "64Mi"},
    "preemptionPolicy": "Never",
    "priorityClassName": "training",
    "readinessGates": [{"conditionType": "example.com/warm"}],
    "resourceClaims": [{"name": "nic", "resourceClaimName": "shared-nic"}],
    "resources": {"requests": {"cpu": "4"}},
    "runtimeClassName": "gvisor",
    "schedulerName": "second",
    "schedulingGroup": {"podGroupName": "mine"},
    "schedulingGates": [{"name": "example.com/licence"}],
    "setHostnameAsFQDN": False,
    "shareProcessNamespace": True,
    "terminationGracePeriodSeconds": 7,
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "topologySpreadConstraints": [SPREAD],
}
"""Fields of a pod's spec that every role's pods have as they are written."""
MERGED = {"containers", "volumes", "securityContext"}
"""Fields that are laid over the operator's; their tests are below."""
ACCOUNT = {"serviceAccountName", "serviceAccount"}
"""Every role's but the coordinator's."""
REFUSED: dict[str, Any] = {
    "activeDeadlineSeconds": 60,
    "ephemeralContainers": [],
    "hostIPC": True,
    "hostNetwork": True,
    "hostPID": True,
    "hostname": "worker",
    "hostnameOverride": "worker",
    "nodeName": "node-1",
    "priority": 1000,
    "restartPolicy": "Always",
    "subdomain": "workers",
}


def rendered(role: Role, template: dict[str, Any], **changes: Any) -> dict[str, Any]:
    job = make_job(**{role.value.lower(): {"template": template}, **changes})
    return render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 0, Config())


every_role = pytest.mark.parametrize("role", list(Role))


def test_every_field_of_a_pod_has_a_row() -> None:
    assert {*PASSED, *MERGED, *ACCOUNT, *REFUSED} == pod_schema.fields("PodSpec")


@every_role
@pytest.mark.parametrize("field", list(PASSED))
def test_a_field_passes_through(role: Role, field: str) -> None:
    found = rendered(role, {"spec": {field: PASSED[field]}})["spec"][field]
    if field == "initContainers" and role is Role.COORDINATOR:
        assert found.pop()["name"] == HEAD_CONTAINER, "ours is the last one"
    assert found == PASSED[field]


@every_role
def test_an_unknown_field_passes_through(role: Role) -> None:
    assert rendered(role, {"spec": {"ofANewerKubernetes": {"a": [1]}}})["spec"]["ofANewerKubernetes"] == {"a": [1]}


@pytest.mark.parametrize("field", sorted(ACCOUNT))
def test_an_account_is_every_roles_but_the_coordinators(field: str) -> None:
    for role in (Role.TRAINER, Role.ROLLOUT):
        assert rendered(role, {"spec": {field: "robot"}})["spec"][field] == "robot"
    with pytest.raises(InvalidSpec, match=rf"spec\.coordinator\.template\.spec\.{field}: 'robot' must be left out"):
        rendered(Role.COORDINATOR, {"spec": {field: "robot"}})


@every_role
@pytest.mark.parametrize("field", list(REFUSED))
def test_what_may_not_be_set_is_refused_by_its_path(role: Role, field: str) -> None:
    template = {"template": {"spec": {field: REFUSED[field]}}}
    with pytest.raises(InvalidSpec) as caught:
        load(manifest(**{role.value.lower(): template}))
    (error,) = caught.value.errors
    assert error.path == f"spec.{role.value.lower()}.template.spec.{field}"
    assert error.value == REFUSED[field]


@every_role
def test_labels_annotations_containers_and_volumes_are_added(role: Role) -> None:
    sidecar = {"name": "logs", "image": "example/logs:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    metadata = {"labels": {"team": "rl"}, "annotations": {"example.com/cost": "a long text, with a comma"}}
    spec = {
        "containers": [sidecar, {"name": "main", "envFrom": [{"secretRef": {"name": "keys"}}]}],
        "volumes": [volume],
        "securityContext": {"supplementalGroups": [7]},
    }
    pod = rendered(role, {"metadata": metadata, "spec": spec})
    assert pod["metadata"]["labels"].items() >= metadata["labels"].items()
    assert pod["metadata"]["annotations"] == metadata["annotations"]
    main, *others = pod["spec"]["containers"]
    assert others == [sidecar]
    assert (main["name"], main["envFrom"]) == ("main", [{"secretRef": {"name": "keys"}}])
    assert volume in pod["spec"]["volumes"]
    assert len(pod["spec"]["volumes"]) > 3, "beside the operator's"
    assert pod["spec"]["securityContext"]["supplementalGroups"] == [7]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


MAIN: dict[str, Any] = {
    "image": "example/own:2",
    "imagePullPolicy": "Always",
    "livenessProbe": {"exec": {"command": ["true"]}},
    "ports": [{"name": "debug", "containerPort": 9}],
    "readinessProbe": {"exec": {"command": ["true"]}},
    "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
    "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
    "startupProbe": {"exec": {"command": ["true"]}},
    "terminationMessagePolicy": "File",
    "tty": True,
    "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}],
    "workingDir": "/work",
}


@every_role
@pytest.mark.parametrize("field", list(MAIN))
def test_a_field_of_the_main_container_passes_through(role: Role, field: str) -> None:
    container = {"name": "main", field: MAIN[field]}
    spec = rendered(role, {"spec": {"containers": [container]}})["spec"]
    if field == "resources" and role is Role.COORDINATOR:
        assert (spec["containers"][0][field], spec["initContainers"][-1][field]) == split(MAIN[field])
    else:
        assert spec["containers"][0][field] == MAIN[field]


# --- defaults ---------------------------------------------------------------------------------------------------------


def test_rollout_machines_are_spread_over_nodes_unless_the_user_says_how() -> None:
    (spread,) = rendered(Role.ROLLOUT, {})["spec"]["topologySpreadConstraints"]
    assert spread == {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"rljob.dev/job": "demo", "rljob.dev/role": "rollout"}},
    }
    for own in ([SPREAD], []):
        found = rendered(Role.ROLLOUT, {"spec": {"topologySpreadConstraints": own}})["spec"]
        assert found["topologySpreadConstraints"] == own
    for role in (Role.COORDINATOR, Role.TRAINER):
        assert "topologySpreadConstraints" not in rendered(role, {})["spec"]


@every_role
def test_a_template_goes_before_the_jobs_scheduler_and_priority(role: Role) -> None:
    job = {"scheduling": {"schedulerName": "first", "priorityClassName": "batch"}}
    common = rendered(role, {}, **job)["spec"]
    assert (common["schedulerName"], common["priorityClassName"]) == ("first", "batch")
    own = rendered(role, {"spec": {"schedulerName": "second", "priorityClassName": "training"}}, **job)["spec"]
    assert (own["schedulerName"], own["priorityClassName"]) == ("second", "training")
