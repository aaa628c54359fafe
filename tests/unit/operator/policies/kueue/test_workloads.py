"""Workloads: what a job asks Kueue for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import Phase, Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import Kueue, Priority, queue_of
from rljob_operator.policies.base.observation import Devices, Observed
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.kueue import settlement, workloads
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.devices import RECHECK_SECONDS
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_queue import BOUNDS, CONFIG, UID, Queued, queued, running


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


def test_a_job_without_a_queue_makes_no_workload() -> None:
    job, seen = make_job(), Observed()
    assert kueue_admission.hold(job, seen, CONFIG) is None
    assert kueue_admission.admission_condition(job, seen, 3) is None
    assert settlement.asked(job, seen, 3, CONFIG) == ()
    assert settlement.settled(job, seen, 3, NOW, CONFIG) == ()
