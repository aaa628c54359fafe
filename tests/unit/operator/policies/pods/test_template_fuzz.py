"""Whatever stands in a pod template: it is refused with its path, or there are pods of it that a server can read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rljob_api import InvalidSpec, RLJob, load
from rljob_api.status import Role
from rljob_kube.errors import ApiError
from rljob_kube.resources import POD
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.manifests import render_pod
from tests.support.examples import examples
from tests.support.operator.harness import NOW, Server, manifest
from tests.support.operator.pod_templates import template

Json = dict[str, Any]


def loaded(role: Role, made: Json, accelerators: int) -> RLJob | None:
    """The job with this template; None where it is refused, by paths that lead into the template."""
    name = role.value.lower()
    changes: Json = {name: {"template": made}}
    if accelerators and role is not Role.COORDINATOR:
        field = {Role.TRAINER: "acceleratorsPerReplica", Role.ROLLOUT: "acceleratorsPerMachine"}[role]
        changes[name][field] = accelerators
    document = manifest(**changes)
    document["metadata"] |= {"uid": "11111111-2222", "generation": 1, "resourceVersion": "7"}
    try:
        return load(document)
    except InvalidSpec as invalid:
        wrong = [error for error in invalid.errors if not error.path.startswith((f"spec.{name}.template", "(file)"))]
        assert wrong == []
        return None


def pods_of(job: RLJob, role: Role) -> list[Json]:
    """All that a plan makes, and one pod that stays away from a node."""
    before = copy.deepcopy(job.spec.to_dict())
    found = [creation.manifest for creation in plan(job, Observed(), NOW, Config(runtime_image="r")).creations]
    found.append(render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 1, Config(), ("node-a",)))
    assert job.spec.to_dict() == before, "manifests share the template's objects, and change none"
    return found


CONTAINER: Json = {"name": "main"}


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(Role)), template(), st.integers(0, 1))
@example(Role.ROLLOUT, {"spec": {"securityContext": "x"}}, 0)
@example(Role.ROLLOUT, {"spec": {"affinity": 1}}, 0)
@example(Role.TRAINER, {"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"cpu": "1"}}}]}}, 1)
@example(Role.TRAINER, {"spec": {"containers": [{**CONTAINER, "volumeMounts": [{}]}]}}, 0)
@example(Role.TRAINER, {"spec": {"containers": [{**CONTAINER, "volumeMounts": None}]}}, 0)
@example(Role.COORDINATOR, {"spec": {"containers": [{**CONTAINER, "securityContext": "x"}]}}, 0)
@example(Role.ROLLOUT, {"spec": {"containers": [{**CONTAINER, "resources": None}], "resourceClaims": None}}, 1)
@example(Role.ROLLOUT, {"spec": {"containers": None, "initContainers": None, "volumes": None}}, 1)
def test_a_template_is_refused_or_makes_pods(role: Role, made: Json, accelerators: int) -> None:
    job = loaded(role, made, accelerators)
    if job is not None:
        for pod in pods_of(job, role):
            assert json.loads(json.dumps(pod)) == pod


@pytest.mark.cluster
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(made=template(), role=st.sampled_from(list(Role)))
@example(Role.TRAINER, {"spec": {"containers": [CONTAINER], "runtimeClassName": "/x"}})
@example(Role.TRAINER, {"spec": {"containers": [CONTAINER], "runtimeClassName": ""}})
@example(Role.TRAINER, {"spec": {"containers": [CONTAINER], "priorityClassName": "", "serviceAccountName": ""}})
@example(Role.TRAINER, {"spec": {"containers": [CONTAINER], "priorityClassName": "a/x"}})
@example(Role.TRAINER, {"spec": {"containers": [CONTAINER], "serviceAccountName": "a/x"}})
async def test_a_server_can_read_the_pods(server: Server, role: Role, made: Json) -> None:
    """It may refuse them for what they say (422, 403), never for how they are written (400)."""
    job = loaded(role, made, 1)
    if job is None:
        return
    for pod in pods_of(job, role):
        pod["metadata"] = {**pod["metadata"], "namespace": server.namespace}
        path = f"{POD.path(server.namespace)}?dryRun=All"
        refusals = []
        try:
            await server.kube._send("POST", path, json.dumps(pod).encode(), {}, {"Content-Type": "application/json"})
        except ApiError as error:
            refusals.append(error)
        assert [error for error in refusals if error.status not in (403, 422)] == []
