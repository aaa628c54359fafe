"""Gang scheduling as a policy: who belongs to the group, when, and what is said where it cannot be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.admission.last_accepted import accept
from rljob_api.spec import Gang, RLJob
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed, Pod, parse_pod
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from tests.support.operator.harness import NOW, make_job

KINDS = [kind for kind in Gang if kind is not Gang.NONE]
BASE = {"coordinator-0", "trainer-0", "rollout-0"}


def job(kind: Gang = Gang.NATIVE, *, begun: bool = False, queue: str | None = "team", **changes: Any) -> RLJob:
    """With one machine more than it must have."""
    rollout = {"machines": 2, "minMachines": 1}
    status = {"firstReadyTime": NOW.isoformat()} if begun else {}
    found = make_job(status, **{"rollout": rollout, "scheduling": {"gang": kind.value}, **changes})
    labels = {pod_groups.KAI_QUEUE: queue} if queue is not None else {}
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"labels": labels})})


def seen(served: bool | None = True, *pods: Pod) -> Observed:
    return Observed(pods, gang_served=served)


def decide(found: RLJob, what: Observed) -> Plan:
    return plan(found, what, NOW, Config())


def pods_of(decided: Plan, **changes: Any) -> list[Pod]:
    pods = [parse_pod(creation.manifest) for creation in decided.creations]
    return [replace(pod, uid=pod.name, **changes) for pod in pods if pod is not None]


def marks(kind: Gang, pod: dict[str, Any]) -> str | None:
    """The group that the pod says it belongs to, by the documented field, label or annotation of its scheduler."""
    meta = pod["metadata"]
    return {
        Gang.NATIVE: pod["spec"].get("schedulingGroup", {}).get("podGroupName"),
        Gang.COSCHEDULING: meta["labels"].get("scheduling.x-k8s.io/pod-group"),
        Gang.VOLCANO: meta.get("annotations", {}).get("scheduling.k8s.io/group-name"),
        Gang.KAI: meta.get("annotations", {}).get("pod-group-name"),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_makes_its_base_together_and_then_the_rest(kind: Gang) -> None:
    found = job(kind)
    first = decide(found, seen())
    assert {creation.new.machine for creation in first.creations} == BASE
    assert {marks(kind, creation.manifest) for creation in first.creations} == {"demo"}
    (group,) = [child for child in first.children if child["kind"] == "PodGroup"]
    assert group["metadata"]["ownerReferences"][0]["uid"] == found.metadata.uid
    assert first.children[0] is group, "before the pods, and before whatever else may be refused"

    waiting = pods_of(first)
    assert decide(found, seen(True, *waiting)).creations == ()
    half = [replace(pod, node="n1" if pod.machine != "trainer-0" else None) for pod in waiting]
    assert decide(found, seen(True, *half)).creations == ()
    (surplus,) = decide(found, seen(True, *(replace(pod, node="n1") for pod in waiting))).creations
    assert surplus.new.machine == "rollout-1"
    assert marks(kind, surplus.manifest) is None


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_a_job_that_has_begun_wait_for_no_gang(kind: Gang) -> None:
    created = decide(job(kind, begun=True), seen(None)).creations
    assert {creation.new.machine for creation in created} == {*BASE, "rollout-1"}
    assert {marks(kind, creation.manifest) for creation in created} == {None}


@pytest.mark.parametrize(
    ("kind", "given", "scheduler"),
    [
        (Gang.NONE, None, None),
        (Gang.NATIVE, None, None),
        (Gang.COSCHEDULING, None, "scheduler-plugins-scheduler"),
        (Gang.COSCHEDULING, "default-scheduler", "default-scheduler"),
        (Gang.VOLCANO, None, "volcano"),
        (Gang.KAI, None, "kai-scheduler"),
        (Gang.KAI, "kai-two", "kai-two"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_all_pods_go_to_one_scheduler(kind: Gang, given: str | None, scheduler: str | None, begun: bool) -> None:
    named = {"schedulerName": given} if given else {}
    created = decide(job(kind, begun=begun, scheduling={"gang": kind.value, **named}), seen()).creations
    assert {creation.manifest["spec"].get("schedulerName") for creation in created} == {scheduler}


def test_kai_finds_the_queue_on_every_pod_and_on_the_group() -> None:
    for begun in (False, True):
        created = decide(job(Gang.KAI, begun=begun), seen()).creations
        assert {creation.manifest["metadata"]["labels"][pod_groups.KAI_QUEUE] for creation in created} == {"team"}
    group = pod_groups.pod_group(job(Gang.KAI))
    assert group is not None
    assert (group["spec"]["queue"], group["metadata"]["labels"][pod_groups.KAI_QUEUE]) == ("team", "team")


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4), st.sampled_from(KINDS))
def test_the_group_is_as_large_as_the_pods_that_say_they_belong_to_it(
    trainers: int, smallest: int, more: int, kind: Gang
) -> None:
    rollout = {"machines": smallest + more, "minMachines": smallest}
    found = job(kind, trainer={"replicas": trainers}, rollout=rollout)
    first = decide(found, seen())
    members = [creation for creation in first.creations if marks(kind, creation.manifest) == "demo"]
    group = pod_groups.pod_group(found)
    assert group is not None
    policy = group["spec"].get("schedulingPolicy", {}).get("gang", {})
    assert policy.get("minCount", group["spec"].get("minMember")) == len(members) == 1 + trainers + smallest
    assert pod_groups.changes(group)["spec"].items() <= group["spec"].items()


def test_the_group_is_written_at_start_after_an_edit_and_at_resync() -> None:
    found = job()
    written = found.model_copy(update={"status": found.status.model_copy(update={"accepted": accept(found)})})
    present = pods_of(decide(found, seen()))
    looked = replace(seen(True, *present), children_present=True)
    assert pod_groups.missing(written, looked) == ()
    bare = replace(seen(), children_present=True)
    assert pod_groups.missing(written, bare) == (pod_groups.pod_group(found),), "its API came after the other children"
    assert pod_groups.missing(written, replace(bare, gang_served=False)) == ()
    assert pod_groups.missing(written, seen()) == (pod_groups.pod_group(found),)
    smaller = written.model_copy(update={"spec": job(rollout={"machines": 2, "minMachines": 2}).spec})
    (group,) = pod_groups.missing(smaller, looked)
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 4
    assert pod_groups.missing(job(Gang.NONE), seen()) == ()
    assert pod_groups.missing(found, seen(False)) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_api_the_job_stalls_and_makes_no_pod(kind: Gang) -> None:
    decided = decide(job(kind), seen(False))
    assert decided.creations == ()
    assert not [child for child in decided.children if child["kind"] == "PodGroup"]
    assert decided.status is not None
    stalled = decided.status.condition("Stalled")
    assert stalled is not None
    assert (stalled.reason, decided.status.phase) == ("GangUnavailable", "Stalled")
    system = pod_groups.SYSTEMS[kind]
    for words in (
        kind.value,
        system.api_version,
        system.install,
        "or suspend the job and set spec.scheduling.gang to None",
    ):
        assert words in stalled.message
    assert decided.again_seconds is not None
    assert decided.again_seconds <= pod_groups.RECHECK_SECONDS
    assert decide(job(kind), seen(True)).creations != (), "it is found at any time"


def test_a_job_that_has_begun_does_not_mind_that_its_api_is_gone() -> None:
    begun = decide(job(begun=True), seen(False))
    assert begun.status is not None
    assert begun.creations
    assert begun.status.condition("Stalled") is None


def test_kai_without_a_queue_is_told() -> None:
    decided = decide(job(Gang.KAI, queue=None), seen())
    assert decided.creations == ()
    assert decided.status is not None
    stalled = decided.status.condition("Stalled")
    assert stalled is not None
    assert pod_groups.KAI_QUEUE in stalled.message


@pytest.mark.parametrize(("begun", "told"), [(False, True), (True, False)])
def test_a_gang_that_finds_no_place_is_told_as_one(begun: bool, told: bool) -> None:
    stall = ConditionReason("Unschedulable", "3 of 3 pods find no node")
    found = pod_groups.explained(job(begun=begun), seen(), stall)
    assert found is not None
    assert found.message.startswith(stall.message)
    assert ("the gang of 3 pods" in found.message) == told
    other = ConditionReason("ImagePullFailed", "no such image")
    assert pod_groups.explained(job(), seen(), other) == other


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (404, "not found", "GangUnavailable"),
        (403, "podgroups is forbidden: User may not create", "GangForbidden"),
        (500, "etcdserver: timed out", None),
        (409, "the object has been modified", None),
    ],
)
def test_what_a_refused_group_means(status: int, message: str, reason: str | None) -> None:
    found = pod_groups.refusal(job(), status, message)
    assert (found.reason if found is not None else None) == reason
    if reason == "GangForbidden":
        assert found is not None
        assert "gangScheduling" in found.message
