"""Quota: what an admission allows, and what stalls or suspends a job that waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import Phase, Role
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.kueue_objects import SELECTS, Flavor, parse_workload
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.pods.devices import RECHECK_SECONDS
from tests.support.operator.harness import make_job
from tests.support.operator.plan_cluster import asynchronous
from tests.support.operator.plan_queue import BOUNDS, ZONE, Queued, queued, running


def test_kueue_takes_one_machine_which_hands_over_and_comes_back() -> None:
    cluster = running()
    assert cluster.machines() == ("rollout-0", "rollout-1", "rollout-2")
    cluster.evict("demo-rollout-2")
    cluster.settle()
    assert cluster.machines() == ("rollout-0", "rollout-1")
    assert "Kueue evicted demo-rollout-2: Preempted" in cluster.status.target.reason
    assert "demo-rollout-2-1" in cluster.pods, "it hands over first"
    assert cluster.parsed("demo-rollout-2").reserved, "its quota is in use until it has gone"
    cluster.report(applied=cluster.status.target.revision, drained=["rollout-2"])
    cluster.settle()
    assert cluster.pods["demo-rollout-2-1"].deleting
    assert cluster.parsed("demo-rollout-2").reserved, "it is on its way out, and still there"
    cluster.bury()
    cluster.settle()
    given = cluster.parsed("demo-rollout-2")
    assert not given.reserved
    assert given.holds("Requeued")
    assert not given.holds("Admitted")
    cluster.admit("demo-rollout-2")
    cluster.settle()
    assert cluster.machines() == ("rollout-0", "rollout-1", "rollout-2")
    assert "demo-rollout-2-2" in cluster.pods


def test_quota_is_held_until_the_kubelet_has_ended_the_pod() -> None:
    """Its program has ended; its phase, which schedulers go by, is still Running."""
    cluster = running()
    cluster.evict("demo-rollout-2")
    cluster.settle()
    name = "demo-rollout-2-1"
    cluster.report(applied=cluster.status.target.revision, drained=["rollout-2"])
    cluster.settle()
    cluster.pods[name] = replace(cluster.pods[name], phase="Succeeded", ending=True)
    cluster.settle()
    assert cluster.parsed("demo-rollout-2").reserved
    cluster.pods[name] = replace(cluster.pods[name], ending=False)
    cluster.settle()
    assert not cluster.parsed("demo-rollout-2").reserved


def test_an_evicted_base_suspends_the_job_and_gives_its_quota_back() -> None:
    cluster = running()
    cluster.evict("demo-base")
    cluster.settle()
    assert cluster.status.target.phase.value == "Suspend"
    assert cluster.status.phase is Phase.SUSPENDING
    assert cluster.reason("Admitted") == "False/Evicted"
    assert all(not pod.deleting for pod in cluster.pods.values()), "the state is saved first"
    cluster.report(applied=cluster.status.target.revision, stage="Suspended")
    cluster.settle()
    assert all(pod.deleting for pod in cluster.pods.values())
    assert cluster.parsed("demo-base").reserved
    cluster.bury()
    cluster.settle()
    assert list(cluster.workloads) == ["demo-base"], "a job that does not run asks for its base alone"
    assert not cluster.parsed("demo-base").reserved
    assert (cluster.status.phase, cluster.reason("Admitted")) == (Phase.PENDING, "False/WaitingForAdmission")
    cluster.admit("demo-base")
    cluster.settle()
    assert {"demo-coordinator-0-2", "demo-trainer-0-2", "demo-rollout-0-2"} == set(cluster.pods)


def test_suspended_by_hand_a_job_asks_for_nothing() -> None:
    cluster = running()
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": True})})
    cluster.settle()
    cluster.report(applied=cluster.status.target.revision, stage="Suspended")
    cluster.settle()
    assert cluster.workloads, "the pods are still there"
    cluster.bury()
    cluster.settle()
    assert cluster.workloads == {}
    assert cluster.reason("Suspended") == "True/SuspendedByUser"


def test_the_end_finishes_the_base_and_deletes_the_rest() -> None:
    cluster = running()
    cluster.report(finished={"outcome": "Complete", "reason": "", "message": "3 rounds"})
    cluster.settle()
    assert not cluster.parsed("demo-base").holds("Finished"), "its pods still run"
    cluster.pods = {name: replace(pod, phase="Succeeded", ending=True) for name, pod in cluster.pods.items()}
    cluster.settle()
    assert not cluster.parsed("demo-base").holds("Finished"), "the kubelet still ends them"
    cluster.bury()
    cluster.settle()
    assert list(cluster.workloads) == ["demo-base"]
    assert cluster.parsed("demo-base").condition("Finished")["reason"] == "Succeeded"
    assert cluster.decide().empty


def test_pods_ready_is_told_once_and_tells_start_from_recovery() -> None:
    cluster = running()

    def told() -> str:
        found = cluster.parsed("demo-base").condition("PodsReady")
        return f"{found['status']}/{found['reason']}"

    assert told() == "True/Started"
    name = "demo-trainer-0-1"
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False)
    cluster.settle()
    assert told() == "False/WaitForRecovery"
    cluster.start_all()
    cluster.settle()
    assert told() == "True/Recovered"
    assert cluster.decide().empty


def test_a_lower_minimum_gives_quota_back_for_good() -> None:
    cluster = running(asynchronous(rollout={"machines": 2, "minMachines": 2, "maxMachines": 2}))
    rollout = cluster.job.spec.rollout.model_copy(update={"machines": 1, "min_machines": 1})
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"rollout": rollout})})
    cluster.settle()
    assert cluster.machines() == ("rollout-0",)
    assert cluster.parsed("demo-base").slots("rollout") == 2, "the machine is still there"
    cluster.report(applied=cluster.status.target.revision, drained=["rollout-1"])
    cluster.settle()
    cluster.bury()
    cluster.settle()
    assert cluster.parsed("demo-base").slots("rollout") == 1
    assert cluster.parsed("demo-base").reserved


def test_figures_of_fewer_machines_than_asked_for_are_no_measure() -> None:
    cluster = running()
    cluster.evict("demo-rollout-2")
    cluster.settle()
    before = cluster.status.elasticity
    last = {"round": 1, "seconds": 10, "trainerWaitSeconds": 9, "bufferFullSeconds": 0}
    cluster.report(applied=cluster.status.target.revision, lastRound=last)
    cluster.settle()
    assert before is not None
    assert cluster.status.elasticity.starving == ()


def test_pods_go_where_their_flavor_is_and_keep_what_their_template_says() -> None:
    job = queued(make_job())
    base = Queued(job)
    base.settle()
    base.admit("demo-base")
    checks = [{"podSetUpdates": [{"name": "rollout", "nodeSelector": {"pool": "7"}, "labels": {"by": "check"}}]}]
    base.workloads["demo-base"]["status"]["admissionChecks"] = checks
    before = {"key": "own", "operator": "Exists"}
    manifest = {"metadata": {"labels": {"x": "y"}}, "spec": {"nodeSelector": {"a": "b"}, "tolerations": [before]}}
    found = kueue_admission.placed(job, NewPod("rollout-0", Role.ROLLOUT, 1), manifest, base.observed())
    assert found["spec"]["nodeSelector"] == {"a": "b", "pool": "7", **ZONE.labels}
    assert found["spec"]["tolerations"] == [before, *ZONE.tolerations]
    assert found["metadata"]["labels"] == {"x": "y", "by": "check"}
    other = kueue_admission.placed(job, NewPod("trainer-0", Role.TRAINER, 1), manifest, base.observed())
    assert other["spec"]["nodeSelector"] == {"a": "b", **ZONE.labels}


UNUSED = "couldn't assign flavors to pod set rollout: insufficient unused quota for cpu in flavor a, 1 more needed"
NEVER = (
    "insufficient quota for cpu in flavor a, previously considered podsets requests (0) + current podset request (3)"
)
NEVER += " > maximum capacity (2)"
LACKS = "couldn't assign flavors to pod set rollout: resource memory unavailable in ClusterQueue"
AFFINITY = "couldn't assign flavors to pod set rollout: flavor a doesn't match node affinity"
SAID = {
    "no queue": ("Inadmissible", "LocalQueue lq doesn't exist", "QueueNotFound", True),
    "a stopped queue": ("Inadmissible", "ClusterQueue cq is inactive", "QueueInactive", True),
    "too little quota for ever": ("Pending", NEVER, "QuotaTooSmall", True),
    "too little quota in one flavor": ("Pending", f"{NEVER}, {UNUSED}", "WaitingForAdmission", False),
    "too little quota now": ("Pending", UNUSED, "WaitingForAdmission", False),
    "no flavor for the template": ("Pending", AFFINITY, "FlavorMismatch", True),
    "no flavor here, and too little now": ("Pending", f"{AFFINITY}, {UNUSED}", "WaitingForAdmission", False),
    "a resource that the queue lacks": ("Pending", f"{UNUSED}; {LACKS}", "ResourceNotInQueue", True),
    "another namespace": (
        "Pending",
        "Workload namespace doesn't match ClusterQueue selector",
        "NamespaceNotSelected",
        True,
    ),
    "requests above limits": ("Pending", "resources validation failed: podSets", "WorkloadInvalid", True),
    "beyond the LimitRange": (
        "Pending",
        "resources didn't satisfy LimitRange constraints: podSets",
        "WorkloadInvalid",
        True,
    ),
    "a queue on its way out": ("Inadmissible", "LocalQueue lq is terminating or missing", "QueueNotFound", True),
    "a class that Kueue does not count": (
        "Inadmissible",
        "DeviceClass gpu is not mapped in DRA configuration for podset rollout",
        "DeviceClassNotMapped",
        True,
    ),
    "a claim that Kueue does not count": (
        "Inadmissible",
        "ResourceClaimTemplate gpus: CEL selectors are not supported",
        "ClaimNotCounted",
        True,
    ),
    "a template that Kueue has not seen yet": (
        "Inadmissible",
        "failed to get claim spec for ResourceClaimTemplate gpus in podset rollout: not found",
        "WaitingForAdmission",
        False,
    ),
}


@pytest.mark.parametrize(("reason", "message", "told", "stalls"), SAID.values(), ids=SAID)
def test_what_kueue_says_is_told_and_what_does_not_pass_by_itself_stalls(
    reason: str, message: str, told: str, stalls: bool
) -> None:
    cluster = Queued(make_job(rollout=BOUNDS))
    cluster.settle()
    cluster.say("demo-base", "QuotaReserved", False, reason, message)
    events = [event.reason for event in cluster.decide().events]
    cluster.settle()
    assert told in events or told == "WaitingForAdmission"
    assert cluster.reason("Admitted") == f"False/{told}"
    assert message in cluster.status.condition("Ready").message
    assert cluster.reason("Stalled") == (f"True/{told}" if stalls else "")
    assert cluster.status.phase is (Phase.STALLED if stalls else Phase.PENDING)
    assert cluster.pods == {}


def _lose_the_flavor(cluster: Queued) -> None:
    cluster.flavors = {}


def _want_another_zone(cluster: Queued) -> None:
    cluster.flavors = {"zone-1": Flavor("zone-1", {"kubernetes.io/os": "plan9"})}


def _remove_kueue(cluster: Queued) -> None:
    cluster.problem = ConditionReason("KueueNotInstalled", "install Kueue")


def _deactivate(cluster: Queued) -> None:
    cluster.workloads["demo-base"]["spec"]["active"] = False


BROKEN: Mapping[str, tuple[Callable[[Queued], None], str]] = {
    "its flavor is deleted": (_lose_the_flavor, "FlavorNotFound"),
    "its flavor means other nodes than the template": (_want_another_zone, "FlavorMismatch"),
    "Kueue is removed": (_remove_kueue, "KueueNotInstalled"),
    "an administrator deactivates it": (_deactivate, "WorkloadDeactivated"),
}


@pytest.mark.parametrize(("breaks", "told"), BROKEN.values(), ids=BROKEN)
def test_a_job_whose_admission_breaks_saves_its_state_and_stalls(breaks: Callable[[Queued], None], told: str) -> None:
    template = {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}
    cluster = running(asynchronous(rollout={**BOUNDS, "template": template}))
    breaks(cluster)
    cluster.settle()
    assert cluster.reason("Stalled") == f"True/{told}"
    assert cluster.status.target.phase.value == "Suspend"
    assert all(not pod.deleting for pod in cluster.pods.values())
    cluster.report(applied=cluster.status.target.revision, stage="Suspended")
    cluster.settle()
    cluster.bury()
    cluster.settle()
    assert (cluster.pods, cluster.status.phase) == ({}, Phase.STALLED)


def test_a_job_that_is_held_keeps_the_quota_of_its_machines() -> None:
    cluster = Queued(make_job(rollout=BOUNDS))
    cluster.settle()
    cluster.admit("demo-base")
    cluster.flavors = {}
    cluster.settle()
    assert cluster.reason("Stalled") == "True/FlavorNotFound"
    assert cluster.parsed("demo-base").slots("rollout") == 1
    cluster.flavors = {"zone-1": ZONE}
    cluster.settle()
    assert "demo-rollout-0-1" in cluster.pods


def test_a_priority_class_that_is_gone_stalls() -> None:
    cluster = Queued(make_job())
    cluster.priority = ConditionReason("PriorityClassNotFound", "make it")
    cluster.settle()
    assert cluster.workloads == {}
    assert cluster.reason("Stalled") == "True/PriorityClassNotFound"
    assert cluster.decide().again_seconds == RECHECK_SECONDS, "no event tells when it is made"


def test_a_waiting_base_is_requested_again_when_its_nodes_change() -> None:
    """As the advice of FlavorMismatch says. One that holds quota keeps it: its pods are where they are."""

    def wants(zone: str) -> RLJob:
        return queued(make_job(rollout={**BOUNDS, "template": {"spec": {"nodeSelector": {"zone": zone}}}}))

    cluster = Queued(wants("1"))
    cluster.settle()
    before = cluster.workloads["demo-base"]["metadata"]["uid"]
    for zone, same in (("1", True), ("2", False)):
        cluster.job = cluster.job.model_copy(update={"spec": wants(zone).spec})
        cluster.settle()
        cluster.settle()
        assert (cluster.workloads["demo-base"]["metadata"]["uid"] == before) is same
    (_, _, pods) = cluster.workloads["demo-base"]["spec"]["podSets"]
    assert pods["template"]["spec"]["nodeSelector"] == {"zone": "2"}
    held = cluster.workloads["demo-base"]["metadata"]["uid"]
    cluster.admit("demo-base")
    cluster.job = cluster.job.model_copy(update={"spec": wants("3").spec})
    cluster.settle()
    assert cluster.workloads["demo-base"]["metadata"]["uid"] == held
    older = cluster.workloads["demo-base"]
    del older["metadata"]["annotations"][SELECTS]
    assert parse_workload(older).selects == "", "of an operator that did not tell it: left alone"


def test_other_resources_in_the_template_are_requested_again() -> None:
    cluster = running()
    more = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}}
    changed = asynchronous(rollout={**BOUNDS, "template": more}).spec.rollout
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"rollout": changed})})
    old = cluster.parsed("demo-base").asks
    cluster.settle()
    assert cluster.reason("Admitted") == "False/ResourcesChanged"
    cluster.report(applied=cluster.status.target.revision, stage="Suspended")
    cluster.settle()
    cluster.bury()
    cluster.settle()
    assert list(cluster.workloads) == ["demo-base"]
    assert cluster.parsed("demo-base").asks != old
    assert not cluster.parsed("demo-base").reserved
