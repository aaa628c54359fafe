"""The types of manifests are true: what the operator makes has the declared fields, and no others."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from rljob_kube.manifests.objects import Child, Deployment, PodGroupSizePatch, Workload, WorkloadStatus
from rljob_kube.manifests.pods import Pod
from tests.support.operator.made_manifests import jobs, made_for
from tests.support.operator.typed_shapes import faults

PATCHES = {("spec",): PodGroupSizePatch, ("conditions",): WorkloadStatus, ("reclaimablePods",): WorkloadStatus}
BY_KIND = {
    get_args(declared.__annotations__["kind"])[0]: declared
    for declared in (*get_args(Child), Pod, Deployment, Workload)
}
JOBS = jobs()


def type_of(made: Any) -> Any:
    return BY_KIND[made["kind"]] if "kind" in made else PATCHES[tuple(made)]


@pytest.mark.parametrize("name", JOBS)
def test_made_manifests_have_the_declared_fields_only(name: str) -> None:
    found = list(made_for(JOBS[name]))
    assert [fault for made in found for fault in faults(made, type_of(made), made.get("kind", "patch"))] == []


def test_every_kind_is_made() -> None:
    made = {one.get("kind") for job in JOBS.values() for one in made_for(job)}
    assert made - {None} == BY_KIND.keys()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"metdata": {}}, "Pod.metdata is not declared"),
        ({"spec": {"containers": [{"image": "i"}]}}, "Pod.spec.containers[0].name is missing"),
        (
            {"spec": {"volumes": [{"name": "v", "emptyDir": {"size": "1"}}]}},
            "Pod.spec.volumes[0].emptyDir.size is not declared",
        ),
        ({"spec": {"nodeSelector": {"zone": 1}}}, "Pod.spec.nodeSelector.zone: 1 is no <class 'str'>"),
        ({"spec": {"enableServiceLinks": 0}}, "Pod.spec.enableServiceLinks: 0 is no <class 'bool'>"),
        ({"spec": {"overhead": {"cpu": None}}}, "Pod.spec.overhead.cpu: None is no str | int | float"),
        ({"kind": "Prod"}, "Pod.kind: 'Prod' is none of ('Pod',)"),
        ({"spec": []}, "Pod.spec: [] is no object"),
    ],
)
def test_a_wrong_field_is_found(change: dict[str, Any], fault: str) -> None:
    pod = next(one for one in made_for(JOBS["plain"]) if one.get("kind") == "Pod")
    assert list(faults({**pod, **change}, Pod, "Pod")) == [fault]
