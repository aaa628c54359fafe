"""Every kind of manifest that the operator makes, for jobs that use its features."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.spec import Gang, RLJob
from rljob_api.status import Role
from rljob_kube.manifests.objects import Child, Deployment, PodGroupSizePatch, Workload, WorkloadStatus
from rljob_kube.manifests.pods import Pod
from rljob_kube.resources import Json
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.kueue_objects import QUEUE, Flavor, Priority
from rljob_operator.policies.gang.pod_groups import KAI_QUEUE, VOLCANO_QUEUE, changes
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.pods.manifests import render_pod
from tests.support.operator.environment_jobs import CALC, SHELL, with_environments
from tests.support.operator.harness import make_job
from tests.support.operator.plan_cluster import Cluster
from tests.support.operator.plan_queue import Queued

Made = Pod | Child | Deployment | Workload | WorkloadStatus | PodGroupSizePatch

CONFIG = Config(runtime_image="example/run:1", image_pull_policy="Always")
_RESOURCES = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": 2, "memory": "8Gi"}}
TEMPLATE: Json = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "affinity": {"podAffinity": {}},
        "nodeSelector": {"zone": "east"},
        "overhead": {"cpu": "1"},
        "runtimeClassName": "gvisor",
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "initContainers": [{"name": "prepare", "image": "example/prepare:1"}],
        "containers": [
            {"name": "main", "resources": _RESOURCES, "env": [{"name": "RAY_a", "value": "1"}]},
            {"name": "logs", "image": "example/logs:1"},
        ],
        "volumes": [{"name": "more", "emptyDir": {"sizeLimit": "1Gi"}}],
    },
}
"""Template with fields that the operator reads, and no others."""


def jobs() -> dict[str, RLJob]:
    """Return a job for each feature that changes manifests."""
    templates: Json = {role: {"template": TEMPLATE} for role in ("coordinator", "trainer", "rollout")}
    scheduling = {"schedulerName": "own", "priorityClassName": "high"}
    code = [{"name": "tests", "kind": "Code"}]
    found = {
        "plain": make_job(),
        "spare machines": make_job(rollout={"machines": 3, "minMachines": 1}),
        "templates": make_job(**templates, scheduling=scheduling, rewards=code),
        "own program": make_job(trainer={"template": {"spec": {"containers": [{"name": "main", "command": ["run"]}]}}}),
        "environments": with_environments({**CALC, "template": TEMPLATE}, SHELL, **templates),
        "hosts by name": with_environments(CALC, {**SHELL, "egress": {"hosts": ["pypi.org"]}}),
        "state on a claim": make_job(checkpoint={"volumeClaimName": "state"}, model={"source": "pvc://models/m"}),
        "bounded state": make_job(checkpoint={"emptyDir": {"sizeLimit": "5Gi"}}),
        "extended resource": _with_accelerators({"resource": "nvidia.com/gpu"}),
        "device class": _with_accelerators({"deviceClass": "gpu.amd.com"}),
    }
    for gang in Gang:
        if gang is not Gang.NONE:
            found[f"gang {gang.value}"] = _labelled(make_job(scheduling={**scheduling, "gang": gang.value}))
    return found


def _with_accelerators(accelerator: Json) -> RLJob:
    return make_job(
        accelerator=accelerator,
        trainer={"acceleratorsPerReplica": 2, "template": TEMPLATE},
        rollout={"acceleratorsPerMachine": 1},
    )


def _labelled(job: RLJob) -> RLJob:
    marks = {"labels": {KAI_QUEUE: "team", QUEUE: "lq"}, "annotations": {VOLCANO_QUEUE: "team"}}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update=marks)})


def made_for(job: RLJob) -> Iterator[Made]:
    """Yield what the operator makes until the job runs, without Kueue and with it."""
    cluster, queued = Cluster(job), Queued(job)
    spare = {"name": "base", "labels": {"check": "a"}, "annotations": {"check": "b"}, "nodeSelector": {"rack": "1"}}
    queued.priority = Priority(100, "kueue.x-k8s.io", "high")
    queued.flavors["zone-1"] = Flavor("zone-1", {"rack-row": "1"}, ({"key": "spot", "operator": "Exists"},))
    for one in (cluster, queued):
        for _ in range(5):
            decided = one.decide()
            yield from _made_by(decided)
            one.apply(decided)
            one.start_all()
            if isinstance(one, Queued):
                one.admit_all()
                for item in one.workloads.values():
                    sets = [{**spare, "name": pod_set["name"]} for pod_set in item["spec"]["podSets"]]
                    item["status"]["admissionChecks"] = [{"name": "check", "podSetUpdates": sets}]
    for role in Role:
        yield render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 1, CONFIG, ("node-a",))


def _made_by(decided: Plan) -> Iterator[Made]:
    for creation in decided.creations:
        yield creation.manifest
    for child in decided.children:
        yield child
        if child["kind"] == "PodGroup":
            yield changes(child)
    yield from decided.deployments
    yield from decided.asked
    for settlement in decided.settled:
        if settlement.status is not None:
            yield settlement.status
