"""Whatever a coordinator's token can write into a status: the operator does not fail, and makes the user's pods."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api import load
from rljob_api.constants import LABEL_EPOCH
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import AVOIDS, Node, Observed, Pod
from rljob_operator.policies.lifecycle.admission import admit
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.manifests import render_pod, shape
from rljob_operator.policies.status.seal import ANNOTATION, digest, operator_part
from rljob_operator.seals import Seals
from tests.support.examples import examples
from tests.support.operator.harness import NOW, manifest
from tests.support.operator.roles import Roles
from tests.support.operator.status_schema import schema, values

Json = dict[str, Any]
CONFIG = Config(runtime_image="example/runtime:1")
BUDGET = settings(
    max_examples=examples(250),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
STATUS = schema()
RUNTIME = values(STATUS["properties"]["runtime"])
FORGED = st.fixed_dictionaries(
    {}, optional={key: values(one) for key, one in STATUS["properties"].items() if key != "runtime"}
)


def _document(status: Json) -> Json:
    found = manifest(rollout={"machines": 2, "minMachines": 1, "maxMachines": 3}, mode="Asynchronous")
    found["metadata"] |= {"namespace": "ns", "uid": "u-1", "generation": 1, "resourceVersion": "7"}
    return {**found, "status": status}


def _pods(first: Plan, job: RLJob) -> tuple[Pod, ...]:
    """The pods that the first plan makes, at work; one has just failed."""
    found = []
    for number, creation in enumerate(first.creations):
        new = creation.new
        epoch = int(creation.manifest["metadata"]["labels"][LABEL_EPOCH])
        pod = Pod(
            f"demo-{new.machine}-1", f"p-{number}", new.role, new.machine, 1, epoch, shape(job.spec, new.role, CONFIG)
        )
        found.append(replace(pod, phase="Running", ready=True, ip=f"10.0.0.{number + 1}", node=f"n{number % 2 + 1}"))
    return tuple(replace(pod, phase="Failed", ready=False) if pod.machine == "rollout-1" else pod for pod in found)


JOB = load(_document({}))
FIRST = plan(JOB, Observed(), NOW, CONFIG)
assert FIRST.status is not None
OURS = json.loads(json.dumps(FIRST.status.to_dict()))
SEEN = Observed(
    _pods(FIRST, JOB), children_present=True, addressed=1, nodes={name: Node(name) for name in ("n1", "n2")}
)
LATER = NOW + timedelta(seconds=20)


def _authentic(status: Json, *, known: bool) -> Json:
    """The document as the operator goes on with it: one that wrote `OURS` itself, or one that has just begun."""
    book = Seals(Roles({ANNOTATION: digest(OURS)}))  # type: ignore[arg-type]
    if known:
        assert asyncio.run(book.forgery(_document(OURS))) is None
    document = _document(status)
    forgery = asyncio.run(book.forgery(document))
    if forgery is None:
        assert digest(operator_part(document)) == digest(OURS)
        return document
    runtime = {key: value for key, value in status.items() if key == "runtime"}
    return {**document, "status": {**copy.deepcopy(forgery.truth), **runtime}}


def _expect_the_users_pods(document: Json) -> None:
    admitted = admit(document)
    assert admitted.refused is None
    assert admitted.job.spec == JOB.spec
    decided = plan(admitted.job, SEEN, LATER, CONFIG, admitted.refused)
    for creation in decided.creations:
        made, new = creation.manifest, creation.new
        avoided = [name for name in made["metadata"].get("annotations", {}).get(AVOIDS, "").split(",") if name]
        assert set(avoided) <= {"n1", "n2"}, "no node but those on which pods of the job stood"
        epoch = int(made["metadata"]["labels"][LABEL_EPOCH])
        assert made == render_pod(admitted.job, new, epoch, CONFIG, avoided)
        assert (new.role, new.incarnation) in {(role, number) for role in Role for number in (1, 2)}
        assert new.machine in {"coordinator-0", "trainer-0", "rollout-0", "rollout-1", "rollout-2"}
    pods = {pod.uid for pod in SEEN.pods}
    assert {removal.pod.uid for removal in decided.removals} <= pods
    if decided.status is not None:
        load({**document, "status": decided.status.to_dict()})


@BUDGET
@given(RUNTIME)
def test_a_report_of_whatever_content(runtime: Json) -> None:
    _expect_the_users_pods(_authentic({**OURS, "runtime": runtime}, known=True))


@BUDGET
@given(FORGED, RUNTIME | st.none(), st.booleans())
def test_a_forged_status_of_whatever_content(forged: Json, runtime: Json | None, known: bool) -> None:
    status = {**OURS, **forged} | ({"runtime": runtime} if runtime is not None else {})
    _expect_the_users_pods(_authentic(status, known=known))


@pytest.mark.parametrize("known", [True, False])
def test_an_evil_spec_in_a_forged_status_is_survived(known: bool) -> None:
    evil = json.loads(OURS["accepted"]["spec"])
    evil["data"]["seed"] += 1  # never changes: the user's own spec would be a refused edit
    evil["rollout"]["template"] = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    status = {**OURS, "accepted": {"uid": "u-1", "spec": json.dumps(evil)}, "runtime": {"round": 3}}
    believed = admit(_document(status))
    assert believed.refused is not None
    assert "volumes" in believed.job.spec.rollout.template.spec, "who believes this status makes other pods"
    _expect_the_users_pods(_authentic(status, known=known))
