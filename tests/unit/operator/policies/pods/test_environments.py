"""Deployments of runners: what is in them, and what their pods may reach."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from rljob_api import InvalidSpec, RLJob, load
from rljob_api import constants as c
from rljob_kube.errors import ApiError
from rljob_kube.resources import DEPLOYMENT
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.pods.environments import anywhere, deployment
from rljob_operator.policies.pods.owned_objects import children
from rljob_operator.writers.deployments import explain_refusal
from tests.support.examples import examples
from tests.support.operator.environment_jobs import SHELL, calc, with_environments
from tests.support.operator.harness import APPLY, Server, make_job, manifest
from tests.support.operator.pod_templates import template

Json = dict[str, Any]
CONFIG = Config("example/run:1", "IfNotPresent")


def rendered(job: RLJob, replicas: int = 2) -> Json:
    return deployment(job, job.spec.environments[0], replicas, CONFIG, anywhere)


def pod_of(job: RLJob) -> Json:
    found: Json = rendered(job)["spec"]["template"]
    return found


def test_what_a_deployment_is() -> None:
    found = rendered(with_environments())
    meta, spec = found["metadata"], found["spec"]
    assert (found["apiVersion"], found["kind"], meta["name"]) == ("apps/v1", "Deployment", "demo-environment-calc")
    assert meta["labels"]["rljob.dev/job"] == "demo"
    assert meta["ownerReferences"][0]["uid"] == "11111111-2222"
    assert spec["replicas"] == 2
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels == {
        "rljob.dev/environments-of": "demo",
        "rljob.dev/environment": "calc",
        "app.kubernetes.io/managed-by": "rljob",
    }
    assert spec["strategy"]["rollingUpdate"]["maxSurge"] == 0, "a quota counts as many as there are runners"


def test_a_runner_has_its_settings_its_key_and_nothing_else() -> None:
    pod = pod_of(
        with_environments(calc(template={"spec": {"containers": [{"name": "main", "image": "example/own:2"}]}}))
    )
    told = json.loads(pod["metadata"]["annotations"]["rljob.dev/settings"])
    assert told["url"] == "http://demo-coordinator.default.svc:8000"
    assert (told["keyFile"], told["root"]) == ("key", "/code")
    assert told["environment"]["name"] == "calc"
    assert "template" not in told["environment"]
    spec = pod["spec"]
    (main,) = spec["containers"]
    assert main["command"] == ["python", "-m", "rljob_env", "/etc/rljob/environment/settings.json"]
    assert (main["image"], main["imagePullPolicy"]) == ("example/own:2", "IfNotPresent")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in main["volumeMounts"]}
    settings_source, key_source = mounts["/etc/rljob/environment"]["projected"]["sources"]
    (item,) = settings_source["downwardAPI"]["items"]
    assert (item["path"], item["fieldRef"]["fieldPath"]) == (
        "settings.json",
        "metadata.annotations['rljob.dev/settings']",
    )
    assert key_source["secret"] == {
        "name": "demo-environments-11111111",
        "items": [{"key": "runner-key-calc", "path": "key"}],
    }
    assert {path for path, volume in mounts.items() if "emptyDir" in volume} == {"/tmp", "/code"}
    assert len(volumes) == 3
    assert spec["automountServiceAccountToken"] is False
    assert "restartPolicy" not in spec, "Always"


def test_a_pod_of_one_episode_has_a_folder_of_its_own_for_its_mark() -> None:
    for reset, expected in (("Process", False), ("Pod", True)):
        pod = pod_of(with_environments({**SHELL, "reset": reset, "episodesPerRunner": 1}))
        told = json.loads(pod["metadata"]["annotations"]["rljob.dev/settings"])
        (main,) = pod["spec"]["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
        empty = {volume["name"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
        assert ("podFolder" in told) is expected
        assert (mounted.get("/var/lib/rljob-pod") in empty) is expected


def test_a_template_is_laid_over_the_runner() -> None:
    own = {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"example.com/a": "b"}},
        "spec": {
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [],
            "volumes": [{"name": "tools", "configMap": {"name": "tools"}}],
            "containers": [
                {"name": "main", "volumeMounts": [{"name": "tools", "mountPath": "/code/"}]},
                {"name": "logs", "image": "example/logs:1"},
            ],
        },
    }
    pod = pod_of(
        with_environments(calc(template=own), scheduling={"priorityClassName": "low", "schedulerName": "other"})
    )
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["annotations"]["example.com/a"] == "b"
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "cpu"}, [])
    assert (spec["priorityClassName"], spec["schedulerName"]) == ("low", "other")
    main, logs = spec["containers"]
    assert logs["image"] == "example/logs:1"
    assert [mount["name"] for mount in main["volumeMounts"] if mount["mountPath"].startswith("/code")] == ["tools"]
    assert "rljob-code" not in {volume["name"] for volume in spec["volumes"]}


def test_runners_leave_a_lost_node_soon_and_are_spread() -> None:
    spec = pod_of(with_environments())["spec"]
    assert {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {
        "rljob.dev/environments-of": "demo",
        "rljob.dev/environment": "calc",
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"maxTurns": 3},
        {"timeoutSeconds": 60.0},
        {"toolSeconds": 60.0},
        {"rewardSeconds": 600.0},
        {"episodesPerRunner": 1},
        {"template": {"metadata": {"labels": {"a": "b"}}}},
    ],
)
def test_an_edit_of_what_runners_are_told_replaces_their_pods(changed: Json) -> None:
    before, after = rendered(with_environments()), rendered(with_environments(calc(**changed)))
    assert before["spec"]["template"] != after["spec"]["template"]
    assert before["metadata"]["labels"]["rljob.dev/shape"] != after["metadata"]["labels"]["rljob.dev/shape"]


def test_the_number_of_pods_is_no_part_of_their_shape() -> None:
    some, none = rendered(with_environments()), rendered(with_environments(), 0)
    assert none["spec"]["replicas"] == 0
    assert some["metadata"] == none["metadata"]
    assert rendered(with_environments(rounds=9)) == some, "an edit of the rest replaces no runner"


def policy(job: RLJob, name: str, config: Config = CONFIG) -> Json | None:
    made = (one for one in children(job, 1, 2, config) if one["kind"] == "NetworkPolicy")
    return next((one["spec"] for one in made if one["metadata"]["name"] == name), None)


def test_runners_reach_the_gateway_alone() -> None:
    spec = policy(with_environments(), "demo")
    assert spec is not None
    rules = [rule for rule in spec["ingress"] if "rljob.dev/environments-of" in json.dumps(rule)]
    assert rules == [
        {
            "from": [{"podSelector": {"matchLabels": {"rljob.dev/environments-of": "demo"}}}],
            "ports": [{"port": 8000, "protocol": "TCP"}],
        }
    ]
    labels = pod_of(with_environments())["metadata"]["labels"]
    assert "rljob.dev/job" not in labels, "the job's own pods reach each other at every port"
    assert policy(make_job(), "demo-environments") is None
    assert policy(with_environments(), "demo-environments", Config(network_policy=False)) is None


# --- whatever stands in a template ------------------------------------------------------------------------------------


def loaded(made: Json) -> RLJob | None:
    """The job with this template; None where it is refused, by paths that lead into the template."""
    document = manifest(environments=[calc(template=made)])
    document["metadata"] |= {"uid": "11111111-2222", "generation": 1, "resourceVersion": "7"}
    try:
        return load(document)
    except InvalidSpec as invalid:
        wrong = [one for one in invalid.errors if not one.path.startswith(("spec.environments[0].template", "(file)"))]
        assert wrong == []
        return None


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(template())
@example({"spec": {"tolerations": None, "volumes": None, "containers": [{"name": "main", "volumeMounts": None}]}})
@example({"metadata": {"labels": {"team": "rl"}}})
def test_a_template_is_refused_or_makes_runners(made: Json) -> None:
    job = loaded(made)
    if job is None:
        return
    before = copy.deepcopy(job.spec.to_dict())
    found = rendered(job)
    assert job.spec.to_dict() == before, "manifests share the template's objects, and change none"
    assert json.loads(json.dumps(found)) == found == rendered(job)
    pod = found["spec"]["template"]
    main = pod["spec"]["containers"][0]
    assert main["name"] == c.MAIN_CONTAINER
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert found["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert json.loads(pod["metadata"]["annotations"][c.ANNOTATION_SETTINGS])["environment"]["name"] == "calc"
    mounted = {mount["mountPath"].rstrip("/") for mount in main["volumeMounts"]}
    assert {c.ENVIRONMENT_DIR, c.CODE_DIR} <= mounted
    ours = [volume for volume in pod["spec"]["volumes"] if volume["name"].startswith("rljob-")]
    assert json.dumps(ours).count("demo-environments-11111111") == 1


# --- on an API server -------------------------------------------------------------------------------------------------


@pytest.mark.cluster
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(made=template())
@example({})
@example({"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}] * 2}]}})
@example({"spec": {"containers": [{"name": "main"}, {"name": "x", "image": "i", "env": [{"name": "A"}] * 2}]}})
async def test_a_server_can_apply_the_deployments(server: Server, made: Json) -> None:
    """It may refuse them for what they say, and the job is then Stalled. No other try is made for ever."""
    job = loaded(made)
    if job is None:
        return
    found = rendered(job)
    found["metadata"] = {**found["metadata"], "namespace": server.namespace}
    path = DEPLOYMENT.path(server.namespace, found["metadata"]["name"])
    params = {"dryRun": "All", "fieldManager": "test", "force": "true"}
    refusals = []
    try:
        await server.kube._send("PATCH", path, json.dumps(found).encode(), params, {"Content-Type": APPLY})
    except ApiError as error:
        refusals.append(error)
    assert [error for error in refusals if explain_refusal("d", error) is None] == []
    assert [error for error in refusals if error.status == 400] == [], "it can read them"
