"""Pod templates are held against the types that Kubernetes publishes, at any depth."""

from __future__ import annotations

import difflib
import random
import time
from itertools import islice
from typing import Any

import pytest

from hack.local_cluster.programs import recipe
from hack.pod_schema import PUBLISHED, reduced, written
from rljob_api import InvalidSpec, load
from rljob_api.constants import MAX_SPEC_LENGTH
from rljob_api.errors import MOST_ERRORS, FieldError
from rljob_api.parsing import pod_schema
from rljob_api.parsing.pod_schema import MOST_UNKNOWN
from tests.support.api.jobs import job
from tests.support.api.kubectl import Kube
from tests.support.minors import Minor

MOUNT = {"name": "x", "mountPath": "/x"}
HTTP = {"httpGet": {"path": "/", "port": "health"}}


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", **fields}]}


RIGHT: list[dict[str, Any]] = [
    container(livenessProbe=HTTP, startupProbe={"tcpSocket": {"port": 8080}}),
    container(resources={"limits": {"memory": "1.5Gi", "cpu": 2, "x/y": 0.5}, "requests": {"cpu": ".5"}}),
    container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}]),
    container(volumeMounts=[MOUNT], securityContext={"runAsUser": 7, "capabilities": {"add": ["IPC_LOCK"]}}),
    {"tolerations": [{}], "affinity": {}, "nodeSelector": {"a": "b"}},
    {"volumes": [{"name": "x", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "y", "configMap": {"defaultMode": 0o440}}]},
    {"securityContext": None, "volumes": None, "containers": [{"name": "main", "env": None, "readinessProbe": None}]},
    {"ofANewerKubernetes": {"a": [None]}},
]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"securityContext": "x"}, "securityContext", "must be an object"),
    ({"affinity": 1}, "affinity", "must be an object"),
    ({"affinity": {"nodeAffinity": []}}, "affinity.nodeAffinity", "must be an object"),
    ({"nodeSelector": {"a": 1}}, "nodeSelector[a]", "must be a string"),
    ({"tolerations": {"key": "a"}}, "tolerations", "must be a list"),
    ({"tolerations": [None]}, "tolerations[0]", "must be an object"),
    ({"terminationGracePeriodSeconds": "30"}, "terminationGracePeriodSeconds", "must be a whole number of 64 bits"),
    ({"terminationGracePeriodSeconds": 1 << 63}, "terminationGracePeriodSeconds", "must be a whole number of 64 bits"),
    ({"shareProcessNamespace": "yes"}, "shareProcessNamespace", "must be true or false"),
    ({"overhead": {"memory": "4GB"}}, "overhead[memory]", "must be a quantity"),
    ({"volumes": [{"emptyDir": {}}]}, "volumes[0].name", "is required, a string"),
    ({"volumes": [{"name": "x", "emptyDir": "x"}]}, "volumes[0].emptyDir", "must be an object"),
    (container(securityContext="x"), "containers[0].securityContext", "must be an object"),
    (container(volumeMounts=[{"name": "x"}]), "containers[0].volumeMounts[0].mountPath", "is required, a string"),
    (container(volumeMounts=[{**MOUNT, "readOnly": 1}]), "containers[0].volumeMounts[0].readOnly", "must be true"),
    (container(command="run"), "containers[0].command", "must be a list"),
    (container(args=[1]), "containers[0].args[0]", "must be a string"),
    (container(env=[{"name": "A", "value": 1}]), "containers[0].env[0].value", "must be a string; put it in quotes"),
    (container(ports=[{"containerPort": 1 << 31}]), "containers[0].ports[0].containerPort", "of 32 bits"),
    (container(livenessProbe={"httpGet": {"port": 1.5}}), "containers[0].livenessProbe.httpGet.port", "or a string"),
    (container(livenessProbe={"htpGet": {}}), "containers[0].livenessProbe.htpGet", "did you mean httpGet?"),
    (container(resources={"limits": []}), "containers[0].resources.limits", "must be an object"),
    (container(resources={"limits": {"cpu": True}}), "containers[0].resources.limits[cpu]", "must be a quantity"),
]


@pytest.mark.parametrize("role", ["coordinator", "trainer", "rollout"])
@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_what_kubernetes_takes_is_taken(role: str, spec: dict[str, Any]) -> None:
    load(job({f"spec.{role}.template": {"spec": spec}}))


@pytest.mark.parametrize("role", ["coordinator", "trainer", "rollout"])
@pytest.mark.parametrize(("spec", "path", "advice"), WRONG, ids=[path for _, path, _ in WRONG])
def test_a_field_of_the_wrong_type_is_refused_with_its_path(
    role: str, spec: dict[str, Any], path: str, advice: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(job({f"spec.{role}.template": {"spec": spec}}))
    (error,) = caught.value.errors
    assert error.path == f"spec.{role}.template.spec.{path}"
    assert advice in error.message


def test_null_is_as_if_left_out() -> None:
    spec = load(job({"spec.trainer.template": {"spec": RIGHT[-2]}})).spec
    assert spec.trainer.template.spec == {"containers": [{"name": "main"}]}


@pytest.mark.cluster
def test_the_types_are_those_that_the_newest_server_publishes(server: Kube, minor: Minor) -> None:
    if minor.name != recipe.MINORS[-1]:
        pytest.skip("the file has the newest minor's types")
    document = server.api.get(PUBLISHED)
    assert len(reduced(document)) > 100
    command = f"kubectl get --raw {PUBLISHED} | python -m hack.pod_schema > crds/rljob_api/parsing/pod_schema.json"
    file = pod_schema.__file__.replace("pod_schema.py", "pod_schema.json")
    with open(file, encoding="utf-8") as stored:
        assert stored.read() == written(document), f"run: {command}"


# --- what a refusal costs ---------------------------------------------------------------------------------------------


def anagrams(word: str, count: int) -> list[str]:
    letters, chance = list(word), random.Random(0)
    found: set[str] = set()
    while len(found) < count:
        chance.shuffle(letters)
        found.add("".join(letters))
    return sorted(found)


def refused(document: dict[str, Any]) -> tuple[list[FieldError], float]:
    """The mistakes, and the processor's seconds for finding them."""
    began = time.process_time()
    with pytest.raises(InvalidSpec) as caught:
        load(document)
    return caught.value.errors, time.process_time() - began


SLIPS = dict.fromkeys(anagrams("terminationgraceperiodseconds", 6000), 0)
"""As many slips of the pen as a spec may hold."""


@pytest.mark.parametrize(
    "edits",
    [
        {"spec.rollout.template": {"spec": SLIPS}},
        {"spec.rollout.template": {"spec": {"containers": [{"name": "main", **SLIPS}]}}},
        {"spec.rollout.template": {"spec": {"volumes": [{"name": "x", name: 0} for name in SLIPS]}}},
        {"spec.algorithm": SLIPS},
        {"spec.rewards": [{"name": "", "kind": 7}] * 6000},
        {"spec.rollout.template": {"spec": {"nodeSelector": dict.fromkeys(SLIPS, 1)}}},
    ],
    ids=["pod", "container", "volumes", "algorithm", "rewards", "values"],
)
def test_a_spec_full_of_mistakes_costs_less_than_a_second(edits: dict[str, Any]) -> None:
    errors, seconds = refused(job(edits))
    assert seconds < 1.0
    assert len(errors) <= MOST_ERRORS + 1
    assert len(str(errors)) < 1 << 20


def test_few_of_many_unknown_names_are_compared_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, *others, **options: compared.append(name) or [])
    errors, _ = refused(job({"spec.rollout.template": {"spec": SLIPS}}))
    assert len(compared) == MOST_UNKNOWN
    assert "one more field that no Kubernetes known here has" in errors[0].message


def test_a_spec_that_is_too_long_is_told_that_and_nothing_else() -> None:
    errors, seconds = refused(
        job({"spec.algorithm": dict.fromkeys(anagrams("terminationgraceperiodseconds", 30_000), 0)})
    )
    assert [error.path for error in errors] == ["spec"]
    assert f"must have at most {MAX_SPEC_LENGTH} characters" in errors[0].message
    assert seconds < 1.0


def test_that_there_are_more_mistakes_is_said() -> None:
    errors, _ = refused(
        job({"spec.rollout.template": {"spec": {"nodeSelector": dict.fromkeys(map(str, range(99)), 1)}}})
    )
    assert len(errors) == MOST_ERRORS + 1
    assert "correct these first" in errors[-1].message
    assert all("must be a string" in error.message for error in islice(errors, MOST_ERRORS))


def test_what_is_nested_too_deeply_is_refused() -> None:
    for depth in (300, 3000):
        deep: Any = 0
        for _ in range(depth):
            deep = [deep]
        document = job({"spec.rollout.template": {"spec": {}}})
        document["spec"]["rollout"]["template"]["spec"]["ofANewerKubernetes"] = deep
        errors, _ = refused(document)
        assert "nested" in errors[0].message or "recursion" in errors[0].message, str(errors[0])
