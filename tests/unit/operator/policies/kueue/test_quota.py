"""Quota: what is asked of Kueue, what an admission allows, and that nothing runs outside of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rljob_api.spec import RLJob
from rljob_api.status import Phase, Role
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.kueue_objects import (
    SELECTS,
    Flavor,
    Kueue,
    Priority,
    parse_workload,
    queue_of,
    workload_of,
)
from rljob_operator.policies.base.observation import Devices, Observed, Pod
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.kueue import settlement, workloads
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.devices import RECHECK_SECONDS
from tests.support.examples import examples
from tests.support.operator.environment_jobs import CALC, SHELL
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import asynchronous
from tests.support.operator.plan_machine import Asynchronous
from tests.support.operator.plan_queue import BOUNDS, CONFIG, UID, ZONE, Queued, queued, running

# --- what is asked ----------------------------------------------------------------------------------------------------


def test_quota_is_requested_for_the_base_first_then_for_machines() -> None:
    cluster = Queued(make_job(rollout=BOUNDS, trainer={"replicas": 2}))
    cluster.settle()
    assert list(cluster.workloads) == ["demo-base"]
    counts = {one["name"]: one["count"] for one in cluster.workloads["demo-base"]["spec"]["podSets"]}
    assert counts == {"coordinator": 1, "trainer": 2, "rollout": 1}
    assert cluster.pods == {}
    assert (cluster.status.phase, cluster.status.target) == (Phase.PENDING, None)
    assert cluster.reason("Admitted") == cluster.reason("Suspended").replace("True", "False")
    cluster.admit("demo-base")
    cluster.settle()
    assert sorted(cluster.workloads) == ["demo-base", "demo-rollout-1", "demo-rollout-2"]
    assert sorted(cluster.pods) == ["demo-coordinator-0-1", "demo-rollout-0-1", "demo-trainer-0-1", "demo-trainer-1-1"]
    assert cluster.reason("Admitted") == "True/PartlyAdmitted"


def test_a_machine_above_the_minimum_is_less_urgent_than_any_base() -> None:
    job = queued(make_job(rollout=BOUNDS))
    kueue = Kueue("lq", priority=Priority(100, "kueue.x-k8s.io", "high"))
    base, (surplus,) = workloads.base(job, kueue, CONFIG), workloads.surplus(job, kueue, [1], 100, CONFIG)
    for manifest in (base, surplus):
        assert [owner["uid"] for owner in manifest["metadata"]["ownerReferences"]] == [UID]
        assert manifest["spec"]["queueName"] == "lq"
    assert base["spec"]["priority"] == 100
    assert base["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }
    assert surplus["spec"]["priority"] == 100 - workloads.SURPLUS_DROP < -100_000_000
    assert "priorityClassRef" not in surplus["spec"]
    (lowest,) = workloads.surplus(job, kueue, [1], -2_000_000_000, CONFIG)
    assert lowest["spec"]["priority"] == workloads.LOWEST


def test_a_pod_set_requests_what_its_pods_request() -> None:
    resources = {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
    template = {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "main", "resources": resources}]}}
    job = queued(make_job(rollout={**BOUNDS, "template": template}))
    (_, _, pods) = workloads.base(job, Kueue("lq"), CONFIG)["spec"]["podSets"]
    spec = pods["template"]["spec"]
    assert spec["nodeSelector"] == {"a": "b"}
    charged = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert spec["containers"] == [{"name": "main", "resources": charged}], "limits are requests where there are none"
    roles = tuple(Role)
    before = workloads.asks(job, roles, CONFIG)
    assert workloads.asks(job, roles, Config(runtime_image="another")) == before
    more = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}}
    assert workloads.asks(queued(make_job(rollout={**BOUNDS, "template": more})), roles, CONFIG) != before


def test_a_label_that_is_taken_off_does_not_free_pods_from_their_quota() -> None:
    job = make_job()
    item = {"spec": {"queueName": "lq"}}
    assert queue_of(queued(job), ()) == "lq"
    assert queue_of(job, [item]) == "lq"
    assert queue_of(job, ()) is None


def test_a_job_stays_in_its_queue_until_it_gives_its_quota_back() -> None:
    cluster = running()
    cluster.queue = "other"
    del cluster.workloads["demo-rollout-2"]
    cluster.settle()
    assert cluster.workloads["demo-rollout-2"]["spec"]["queueName"] == "lq"
    cluster.evict("demo-base")
    cluster.report(applied=99, stage="Suspended")
    for _ in range(2):
        cluster.settle()
        cluster.bury()
    cluster.settle()
    assert {name: item["spec"]["queueName"] for name, item in cluster.workloads.items()} == {"demo-base": "other"}


# --- what an admission allows -----------------------------------------------------------------------------------------


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


# --- bad cases --------------------------------------------------------------------------------------------------------

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


def claiming(**accelerator: str) -> RLJob:
    """Each rollout machine claims two devices."""
    rollout = {**BOUNDS, "acceleratorsPerMachine": 2, "tensorParallelSize": 2}
    return queued(make_job(rollout=rollout, accelerator=accelerator))


def test_what_the_base_claims_is_made_before_the_base_is_asked_for() -> None:
    """Kueue counts devices by the templates of the claims."""
    decided = plan(claiming(deviceClass="gpu"), Observed(kueue=Kueue("lq")), NOW, CONFIG)
    (template,) = decided.children
    assert template["kind"] == "ResourceClaimTemplate"
    (base,) = decided.asked
    pods = {one["name"]: one["template"]["spec"] for one in base["spec"]["podSets"]}
    claim = {"name": "rljob-accelerators", "resourceClaimTemplateName": template["metadata"]["name"]}
    assert pods["rollout"]["resourceClaims"] == [claim]
    assert pods["rollout"]["containers"][0]["resources"]["claims"] == [{"name": "rljob-accelerators"}]
    assert "resourceClaims" not in pods["trainer"]


@pytest.mark.parametrize(
    ("devices", "told"),
    [(Devices(), "ClaimTemplateNotFound"), (Devices(served=False), "DeviceClaimsNotServed")],
)
def test_a_base_whose_claims_cannot_be_made_is_not_asked_for(devices: Devices, told: str) -> None:
    job, seen = claiming(claimTemplate="gpus"), Observed(devices=devices, kueue=Kueue("lq"))
    decided = plan(job, seen, NOW, CONFIG)
    assert (decided.asked, decided.creations) == ((), ())
    assert decided.status is not None
    stalled = decided.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == told
    assert decided.again_seconds == RECHECK_SECONDS, "no event tells when it is there"
    there = replace(seen, devices=Devices(templates=frozenset({"gpus"})))
    assert [one["metadata"]["name"] for one in plan(job, there, NOW, CONFIG).asked] == ["demo-base"]


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


def test_a_job_without_a_queue_makes_no_workload() -> None:
    job, seen = make_job(), Observed()
    assert kueue_admission.hold(job, seen, CONFIG) is None
    assert kueue_admission.admission_condition(job, seen, 3) is None
    assert settlement.asked(job, seen, 3, CONFIG) == ()
    assert settlement.settled(job, seen, 3, NOW, CONFIG) == ()


# --- in any order -----------------------------------------------------------------------------------------------------


class QueuedMachine(Asynchronous):
    """The same job on quota: Kueue admits and evicts what it likes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Queued = Queued(self.cluster.job)

    def _one(self, number: int, reserved: bool) -> str | None:
        names = [name for name in self.cluster.workloads if self.cluster.parsed(name).reserved is reserved]
        return names[number % len(names)] if names else None

    @rule(number=st.integers(0, 5))
    def kueue_admits(self, number: int) -> None:
        name = self._one(number, reserved=False)
        if name is not None and not self.cluster.parsed(name).holds("Finished"):
            self.cluster.admit(name)

    @rule(number=st.integers(0, 5))
    def kueue_evicts(self, number: int) -> None:
        name = self._one(number, reserved=True)
        if name is not None:
            self.cluster.evict(name)

    @rule()
    def the_flavor_is_made_again_or_deleted(self) -> None:
        self.cluster.flavors = {} if self.cluster.flavors else {"zone-1": ZONE}

    @invariant()
    def no_pod_runs_outside_of_its_quota(self) -> None:
        """A pod that may run, or has not gone, stands for quota that is held; and never are there more than fit."""
        kueue = self.cluster.observed().kueue
        assert kueue is not None
        pods: dict[str, list[Pod]] = {}
        judged = self.cluster.observed().with_condemned(self.cluster.status)
        for pod in judged.pods:
            if pod.occupies:
                found = workload_of(self.cluster.job.name, pod.machine, kueue)
                assert found is not None, f"{pod.name} makes no request"
                assert found.reserved, f"{pod.name} runs for {found.name}, which holds no quota"
                pods.setdefault(found.name, []).append(pod)
        for name, some in pods.items():
            one = kueue.workloads[name]
            live = {pod.machine for pod in some if pod.live and not pod.deleting}
            for pod_set in one.counts:
                members = {machine for machine in live if machine.startswith(f"{pod_set}-")}
                target = set(self.cluster.machines()) if self.cluster.status.target else set()
                wanted = members & target if pod_set == "rollout" else members
                assert len(wanted) <= one.slots(pod_set), f"{sorted(wanted)} for {name}"

    @invariant()
    def every_workload_is_the_jobs_and_named_for_what_it_is(self) -> None:
        names = {"demo-base", *(f"demo-rollout-{index}" for index in range(9))}
        for name, item in self.cluster.workloads.items():
            assert name in names
            assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [UID]


QueuedMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestQueuedPlan = QueuedMachine.TestCase


class QueuedWithEnvironments(QueuedMachine):
    """The same with runners, whose controller is late: it may still create pods that are not wanted any more."""

    job = staticmethod(partial(asynchronous, environments=[CALC, SHELL]))

    @initialize()
    def it_is_at_work(self) -> None:
        """Few random steps lead there, and what quota covers begins there."""
        self.cluster.settle()
        self.cluster.admit_all()
        self.cluster.settle()
        self.cluster.start_all()

    @rule(answers=st.booleans())
    def the_base_is_evicted(self, answers: bool) -> None:
        """The coordinator saves its state, or there is none."""
        if "demo-base" not in self.cluster.workloads:
            return
        self.cluster.evict("demo-base")
        self.cluster.settle()
        if answers:
            target = self.cluster.status.target
            self._report(applied=target.revision if target is not None else None, stage="Suspended")
            self.cluster.settle()
            self.cluster.bury()

    @rule()
    def the_controller_catches_up(self) -> None:
        self.cluster.run_runners()

    @rule(name=st.sampled_from(["calc", "shell"]))
    def the_controller_creates_pods_for_an_earlier_number(self, name: str) -> None:
        one = self.cluster.runners.get(name)
        if one is not None and not one.current:
            self.cluster.runners[name] = replace(one, pods=2)

    @invariant()
    def no_runner_runs_outside_of_its_quota(self) -> None:
        base = self.cluster.workloads.get("demo-base")
        if base is None or not parse_workload(base).reserved:
            assert {name: one.pods for name, one in self.cluster.runners.items() if one.pods} == {}


QueuedWithEnvironments.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestQueuedPlanWithEnvironments = QueuedWithEnvironments.TestCase
