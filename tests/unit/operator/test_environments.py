"""Runners in the operator's shell: the Secret's keys, the applied Deployments, their lists and their events."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from rljob_api import constants as c
from rljob_api.keys.proxy_key import verify_proxy_key
from rljob_api.keys.runner_key import verify_runner_key
from rljob_api.keys.signed_text import KeyRefused
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError
from rljob_kube.event_recorder import EventRecorder
from rljob_operator.api_access import ApiAccess
from rljob_operator.applier import Applier, WrittenObjects
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.base.runners import RunnerPod
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.environments import anywhere, deployment
from rljob_operator.policies.pods.owned_objects import children
from rljob_operator.readers.deployment_lister import DeploymentLister
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.seals import Seals
from rljob_operator.watch import WatchHandlers
from rljob_operator.writers.calls import RequeueAfter
from rljob_operator.writers.deployments import DeploymentWriter
from tests.support.operator.environment_jobs import CALC, SHELL, with_environments
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import CONFIG

Json = dict[str, Any]
JOB = with_environments(CALC, SHELL)
CALC_DEPLOYMENT = deployment(JOB, JOB.spec.environments[0], 2, CONFIG, anywhere)
OWNED = {**CALC_DEPLOYMENT, "metadata": {**CALC_DEPLOYMENT["metadata"], "uid": "d-1", "resourceVersion": "40"}}


class Api(KubeClient):
    """An API server with prepared answers, which keeps the requests."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(Credentials(Connection("https://unused")))
        self.answers = answers
        self.sent: list[tuple[str, str, Any, dict[str, str]]] = []

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> Json:
        self.sent.append((method, path, json.loads(data or b"null"), dict(params)))
        answer = self.answers.get(method, {})
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


async def _leading() -> None:
    return


def _applier(api: Api) -> Applier:
    return Applier(
        ApiAccess(api, EventRecorder(api), Metrics()), _leading, WrittenObjects(lambda items: None), Seals(api)
    )


async def test_the_secret_of_environments_has_a_key_for_each() -> None:
    api = Api()
    applier = _applier(api)
    await applier.apply(JOB, Plan(children=tuple(children(JOB, 1, 2, CONFIG))), NOW)
    bodies = [body for _, path, body, _ in api.sent if path.endswith("/secrets")]
    own, environments = ({body["metadata"]["name"]: body["stringData"]} for body in bodies)
    assert set(own["demo-auth-11111111"]) == {c.AUTH_RAY_TOKEN, c.AUTH_RELAY_KEY}
    keys = environments["demo-environments-11111111"]
    assert set(keys) == {c.CAPABILITY_KEY, c.RUNNERS_KEY, "runner-key-calc", "runner-key-shell"}
    secret = bytes.fromhex(keys[c.RUNNERS_KEY])
    assert len(secret) == len(bytes.fromhex(keys[c.CAPABILITY_KEY])) == 32
    assert keys[c.RUNNERS_KEY] != keys[c.CAPABILITY_KEY]
    for name in ("calc", "shell"):
        assert verify_runner_key(secret, keys[f"runner-key-{name}"]) == name
    with pytest.raises(KeyRefused):
        verify_runner_key(bytes.fromhex(keys[c.CAPABILITY_KEY]), keys["runner-key-calc"])


async def test_the_secret_of_the_egress_proxy_has_a_key_for_each_environment() -> None:
    api = Api()
    applier = _applier(api)
    job = with_environments(CALC, {**SHELL, "egress": {"hosts": ["pypi.org"]}})
    await applier.apply(job, Plan(children=tuple(children(job, 1, 2, CONFIG))), NOW)
    bodies = [body for _, path, body, _ in api.sent if path.endswith("/secrets")]
    keys = {body["metadata"]["name"]: body["stringData"] for body in bodies}["demo-egress-11111111"]
    assert set(keys) == {"proxy-keys-key", "proxy-key-calc", "proxy-key-shell"}
    for name in ("calc", "shell"):
        assert verify_proxy_key(bytes.fromhex(keys["proxy-keys-key"]), keys[f"proxy-key-{name}"]) == name
    with pytest.raises(KeyRefused):
        verify_runner_key(bytes.fromhex(keys["proxy-keys-key"]), keys["proxy-key-calc"])


async def test_a_secret_that_exists_is_not_read() -> None:
    api = Api(POST=ApiError(409, "AlreadyExists", "it exists"))
    applier = _applier(api)
    secrets = tuple(one for one in children(JOB, 1, 2, CONFIG) if one["kind"] == "Secret")
    await applier.apply(JOB, Plan(children=secrets), NOW)
    assert [method for method, *_ in api.sent] == ["POST", "POST"]


async def test_a_deployment_is_applied_from_its_first_write_on() -> None:
    seen: list[Json] = []
    api = Api(GET=ApiError(404, "NotFound", "none"), PATCH=OWNED)
    assert await DeploymentWriter(api, seen.extend, 1).apply(JOB, [CALC_DEPLOYMENT]) is None
    (_, (method, path, body, params)) = api.sent
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/default/deployments/demo-environment-calc")
    assert (params["fieldManager"], params["force"]) == ("rljob-operator", "true")
    assert body == CALC_DEPLOYMENT
    assert seen == [OWNED], "no later list is older"


async def test_an_apply_does_not_create_what_was_just_deleted() -> None:
    api = Api(GET=OWNED, PATCH=ApiError(409, "Conflict", "uid mismatch"))
    with pytest.raises(RequeueAfter):
        await DeploymentWriter(api, lambda items: None, 1).apply(JOB, [CALC_DEPLOYMENT])
    assert api.sent[1][2]["metadata"]["uid"] == "d-1"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError(422, "Invalid", "spec.template is invalid"), "PodInvalid"),
        (ApiError(403, "Forbidden", "exceeded quota: q, requested: count/deployments.apps=1"), "QuotaExceeded"),
        (ApiError(403, "Forbidden", "a webhook says no"), "PodForbidden"),
        (ApiError(500, "InternalError", "failed to create typed patch object (...): duplicate entries"), "PodInvalid"),
    ],
)
async def test_a_deployment_that_is_refused_for_good_stalls_the_job(error: ApiError, reason: str) -> None:
    api = Api(GET=ApiError(404, "NotFound", "none"), PATCH=error)
    applier = _applier(api)
    applier.write_status = mock.AsyncMock()  # type: ignore[method-assign]
    done = await applier.apply(JOB, Plan(deployments=(CALC_DEPLOYMENT,)), NOW)
    assert done.status is not None
    stalled = done.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == reason
    assert stalled.message == f"Deployment demo-environment-calc: {error.message}"


class Quota(Api):
    """It has no place for a pod."""

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> Json:
        answer = await super()._send(method, path, data, params, headers)
        if method == "POST" and path.endswith("/pods"):
            raise ApiError(403, "Forbidden", "exceeded quota: q")
        return answer


async def test_runners_take_no_place_of_a_pod_that_is_refused() -> None:
    api = Quota()
    applier = _applier(api)
    applier.write_status = mock.AsyncMock()  # type: ignore[method-assign]
    decided = plan(JOB, Observed(children_present=True, addressed=1), NOW, CONFIG)
    assert len(decided.deployments) == 2
    await applier.apply(JOB, decided, NOW)
    assert "PATCH" not in {method for method, path, *_ in api.sent if path.startswith("/apis/apps")}


async def test_another_error_is_tried_again() -> None:
    api = Api(GET=ApiError(404, "NotFound", "none"), PATCH=ApiError(500, "InternalError", "etcd is away"))
    with pytest.raises(ApiError):
        await DeploymentWriter(api, lambda items: None, 1).apply(JOB, [CALC_DEPLOYMENT])


async def test_a_deployment_of_another_owner_is_left_alone() -> None:
    foreign = {"kind": "Deployment", "metadata": {"name": "demo-environment-calc", "uid": "x"}}
    api = Api(GET=foreign)
    stall = await DeploymentWriter(api, lambda items: None, 1).apply(JOB, [CALC_DEPLOYMENT])
    assert stall is not None
    assert stall.reason == "NameTaken"
    assert [method for method, *_ in api.sent] == ["GET"]


async def test_deployments_are_listed_for_jobs_with_environments_only() -> None:
    api = Api(GET={"items": [{**OWNED, "status": {"readyReplicas": 2}}]})
    lister = DeploymentLister(api)
    assert await lister.runners(make_job()) == {}
    assert api.sent == []
    lister.observe([OWNED])
    found = await lister.runners(JOB)
    assert found["calc"].wanted == 2
    ((_, path, _, params),) = api.sent
    assert path == "/apis/apps/v1/namespaces/default/deployments"
    assert (params["labelSelector"], params["resourceVersion"]) == ("rljob.dev/job=demo", "40")


def _runner_pod(version: str, state: Json) -> Json:
    labels = {"rljob.dev/environments-of": "demo", "rljob.dev/environment": "calc"}
    owners = [{"kind": "ReplicaSet", "name": "demo-environment-calc-7f"}]
    meta = {"namespace": "default", "name": "p", "uid": "p-1", "labels": labels, "ownerReferences": owners}
    status = {"containerStatuses": [{"name": "main", "image": "i", "ready": False, "state": state}]}
    return {"metadata": {**meta, "resourceVersion": version}, "status": status}


ABSENT = {"terminated": {"exitCode": 127}}


class OfKind(Api):
    """An API server with a Deployment and a pod of its runners."""

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> Json:
        await super()._send(method, path, data, params, headers)
        return {"items": [_runner_pod("50", ABSENT) if path.endswith("/pods") else OWNED]}


async def test_pods_of_runners_are_listed_while_some_are_not_ready() -> None:
    api = OfKind()
    lister = DeploymentLister(api)
    lister.observe_pods([_runner_pod("50", ABSENT)])
    found = await lister.runners(JOB)
    assert found["calc"].broken is not None
    assert found["calc"].broken.reason == "RunnerMissing"
    _, (_, path, _, params) = api.sent
    assert path == "/api/v1/namespaces/default/pods"
    assert (params["labelSelector"], params["resourceVersion"]) == ("rljob.dev/environments-of=demo", "50")


def test_a_runner_that_cannot_start_marks_its_job_once() -> None:
    marks: list[tuple[tuple[str, str], float]] = []
    pods, deployments = mock.Mock(), mock.Mock()
    watch = WatchHandlers(
        lambda key, seconds: marks.append((key, seconds)),
        lambda key, uid: None,
        pods,
        NodeCache(mock.Mock()),
        deployments,
        Metrics(),
    )
    watch.pod_event("ADDED", _runner_pod("1", {"waiting": {"reason": "ContainerCreating"}}))
    assert marks == []
    for number in range(2, 5):
        watch.pod_event("MODIFIED", _runner_pod(str(number), {**ABSENT, "waiting": {"message": f"try {number}"}}))
    assert marks == [(("default", "demo"), 1.0)]
    watch.pod_event("DELETED", _runner_pod("5", ABSENT))
    assert len(marks) == 2, "its job may be well again"
    watch.pod_event("ADDED", {"metadata": {"name": "other", "namespace": "default"}})
    assert len(marks) == 2
    assert (deployments.observe_pods.call_count, pods.observe.call_count) == (5, 0)


RESTARTED = {"running": {}}


def used_pod(version: str) -> Json:
    """A pod whose runner has had its one episode. The kubelet has started its container again."""
    pod = _runner_pod(version, RESTARTED)
    pod["status"]["containerStatuses"][0] |= {"ready": True, "lastState": {"terminated": {"exitCode": 86}}}
    return pod


def test_a_used_pod_marks_its_job_once_and_immediately() -> None:
    marks: list[tuple[tuple[str, str], float]] = []
    watch = WatchHandlers(
        lambda key, seconds: marks.append((key, seconds)),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        mock.Mock(),
        Metrics(),
    )
    watch.pod_event("ADDED", _runner_pod("1", RESTARTED))
    for number in range(2, 5):
        watch.pod_event("MODIFIED", used_pod(str(number)))
    assert marks == [(("default", "demo"), 0.0)]


class Renewed(Api):
    """An API server with a Deployment whose runners are all ready, and one of its pods is used."""

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> Json:
        await super()._send(method, path, data, params, headers)
        ready = {**OWNED, "status": {"readyReplicas": 2}}
        foreign = used_pod("51")
        foreign["metadata"] |= {"uid": "p-2", "ownerReferences": [{"kind": "ReplicaSet", "name": "other-7f"}]}
        return {"items": [used_pod("50"), foreign] if path.endswith("/pods") else [ready]}


@pytest.mark.parametrize("reset", ["Process", "Pod"])
async def test_pods_are_listed_while_each_runs_one_episode(reset: str) -> None:
    api = Renewed()
    job = with_environments({**SHELL, "name": "calc", "runners": 2, "reset": reset, "episodesPerRunner": 1})
    found = (await DeploymentLister(api).runners(job))["calc"]
    pods = found.single_episode_pods
    if reset == "Pod":
        assert [(one.uid, one.used) for one in pods or ()] == [("p-1", True)], "of the other Deployment none"
    else:
        assert (pods, len(api.sent)) == (None, 1)


async def test_a_used_pod_is_deleted_if_it_is_still_the_same() -> None:
    api = Api()
    applier = _applier(api)
    await applier.apply(JOB, Plan(used_pods=(RunnerPod("p", "p-1", NOW),)), NOW)
    ((method, path, body, _),) = api.sent
    assert (method, path) == ("DELETE", "/api/v1/namespaces/default/pods/p")
    assert (body["preconditions"], "gracePeriodSeconds" in body) == ({"uid": "p-1"}, False)
    again = Api(DELETE=ApiError(409, "Conflict", "another uid"))
    applier = _applier(again)
    await applier.apply(JOB, Plan(used_pods=(RunnerPod("p", "p-1", NOW),)), NOW)
    assert len(again.sent) == 1


@pytest.mark.parametrize("allowed", [True, False])
async def test_without_the_right_to_list_deployments_they_are_not_watched(allowed: bool) -> None:
    lister = DeploymentLister(Api(GET={"items": []} if allowed else ApiError(403, "Forbidden", "no right")))
    await lister.prime([None])
    assert lister.open is allowed


def test_a_change_of_runners_marks_the_job() -> None:
    marks: list[tuple[tuple[str, str], float]] = []
    lister, metrics = mock.Mock(), Metrics()
    watch = WatchHandlers(
        lambda key, seconds: marks.append((key, seconds)),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        lister,
        metrics,
    )
    watch.deployment_event(None, OWNED)
    for number in range(3):
        report = {"updatedReplicas": number, "conditions": [{"type": "Available", "status": "True"}]}
        watch.deployment_event("MODIFIED", {**OWNED, "status": report})
    assert marks == [(("default", "demo"), 0.0)], "the controller's bookkeeping changes no decision"
    watch.deployment_event("MODIFIED", {**OWNED, "status": {"readyReplicas": 1}})
    watch.deployment_event("DELETED", OWNED)
    assert len(marks) == 3
    watch.deployment_event("MODIFIED", {"metadata": {"name": "other", "namespace": "default"}})
    assert len(marks) == 3
    assert lister.observe.call_count == 6
    seen = metrics.registry.get_sample_value
    assert seen("rljob_operator_watch_events_total", {"resource": "deployments", "relevant": "true"}) == 3
