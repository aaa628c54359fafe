"""Demo plan: selects the cluster, fits an example to it, and decides if a node is lost and when a job is given up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_api.spec.training import Mode
from rljob_operator.policies.base.kueue_objects import API_VERSION as KUEUE
from rljob_operator.policies.base.kueue_objects import QUEUE

CLUSTERS = ("local", "kind", "own")
QUOTA = {"cpu": "700m", "memory": "4Gi"}
"""Of the queue of an example: what its manifest asks a platform team for."""
PLACEHOLDER = "registry.example.com/"
"""Images of this registry stand for those that a user builds."""
TEMPORARY = frozenset(
    {
        "ExportFailed",
        "ImagePullFailed",
        "InternalError",
        "KueueNotAnswering",
        "QuotaExceeded",
        "RequestRefused",
        "RewardsUnavailable",
        "RunnersNotStarting",
        "SandboxUnavailable",
        "StoreHeld",
        "Unschedulable",
    }
)
"""Reasons of `Stalled` that may pass without a person: the operator, the coordinator or the kubelet tries again."""
PATIENCE, LONG_PATIENCE = 10.0, 300.0
"""Seconds until a stalled job is given up. What was just installed may be a moment late, a new node some minutes."""


@dataclass(frozen=True)
class Choice:
    """A cluster of `CLUSTERS`, and the reason for it."""

    cluster: str
    why: str


@dataclass(frozen=True)
class Stall:
    """Why a job cannot progress, and for how many seconds that may last."""

    why: str
    patience: float


def choose(environ: Mapping[str, str], euid: int, platform: str) -> Choice:
    """Choose the cluster: that of `CLUSTER`, else that of `KUBECONFIG`, else what this machine can run.

    `platform`: value of `sys.platform`. Raises ValueError for a `CLUSTER` that does not exist.
    """
    asked = environ.get("CLUSTER", "")
    if asked in CLUSTERS:
        return Choice(asked, f"CLUSTER={asked}")
    if asked:
        raise ValueError(f"CLUSTER={asked}: it must be one of {', '.join(CLUSTERS)}, or empty")
    if environ.get("KUBECONFIG"):
        return Choice("own", "KUBECONFIG is set")
    if platform != "linux":
        return Choice("kind", f"the local cluster needs Linux, and this is {platform}")
    if euid != 0:
        return Choice("kind", "the local cluster needs root")
    return Choice("local", "root on Linux, and KUBECONFIG is not set")


def describe(choice: Choice, kubernetes: str) -> str:
    """Return the demo's first line. `kubernetes`: the minor of a cluster that is created here."""
    cluster = {
        "local": f"the local cluster, Kubernetes {kubernetes}",
        "kind": f"a kind cluster, Kubernetes {kubernetes}",
        "own": "the cluster of the current kubeconfig",
    }[choice.cluster]
    return f"{cluster} ({choice.why})"


def needs(job: RLJob, cluster: str) -> list[str]:
    """Return what the example needs and the demo lacks; [] for one that runs as it is."""
    found, spec = [], job.spec
    accelerators = (
        spec.trainer.replicas * spec.trainer.accelerators_per_replica
        + spec.rollout.machines * spec.rollout.accelerators_per_machine
    )
    if accelerators and cluster != "own":
        found.append(f"{accelerators} accelerators")
    # The demo creates the example's claims, so they are empty.
    if claims := spec.claims():
        found.append(f"your data in the claim {', '.join(claims)}")
    if images := _placeholders(job):
        found.append(f"an image of yours in place of {', '.join(images)}")
    return found


def _placeholders(job: RLJob) -> list[str]:
    """Return the images of environments that an example only stands for, sorted."""
    templates = (environment.template.spec for environment in job.spec.environments)
    images = {one.get("image", "") for spec in templates for one in spec.get("containers", [])}
    return sorted(image for image in images if image.startswith(PLACEHOLDER))


def queue_of(job: RLJob) -> str | None:
    """Return the LocalQueue that admits the job; None for one without a quota."""
    return job.metadata.labels.get(QUEUE)


def no_kueue(queue: str) -> str:
    """Return what a person installs for a job in a queue, on a cluster whose Kueue is not the demo's to install."""
    return (
        f"the job asks for quota of queue {queue}, and this cluster does not serve {KUEUE}: install Kueue 0.17 "
        "(https://kueue.sigs.k8s.io/docs/installation), then run the demo again. The demo makes the queue"
    )


def quota(queue: str, namespace: str) -> list[dict[str, Any]]:
    """Return a LocalQueue of that name, and a ClusterQueue for the namespace alone. Other queues stay as they are."""
    resources = [{"name": name, "nominalQuota": amount} for name, amount in QUOTA.items()]
    group = {"coveredResources": list(QUOTA), "flavors": [{"name": namespace, "resources": resources}]}
    admission = {
        "namespaceSelector": {"matchLabels": _named(namespace)},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    objects: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("ResourceFlavor", {"name": namespace}, {}),
        ("ClusterQueue", {"name": namespace}, admission),
        ("LocalQueue", {"name": queue, "namespace": namespace}, {"clusterQueue": namespace}),
    )
    return [{"apiVersion": KUEUE, "kind": kind, "metadata": meta, "spec": spec} for kind, meta, spec in objects]


def kueue_values(defaults: Mapping[str, Any], image: str, namespace: str) -> dict[str, Any]:
    """Return the values of Kueue's chart, whose `defaults` these are, for an image that every node has.

    Kueue stays installed. Its webhooks for pods and Deployments ask about the namespace alone, and are not needed: a
    lost node with its manager must not stop other jobs of the cluster.
    """
    repository, _, tag = image.rpartition(":")
    config = yaml.safe_load(defaults["managerConfig"]["controllerManagerConfigYaml"])
    config |= {
        "managedJobsNamespaceSelector": {"matchLabels": _named(namespace)},
        "integrations": {"frameworks": ["batch/job"]},
    }
    return {
        "controllerManager": {"manager": {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}},
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(config)},
    }


def _named(namespace: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": namespace}


def ended(status: Mapping[str, Any]) -> str | None:
    """Return how the job has ended: `Complete`, or why it has failed. None while it goes on."""
    if _true(status, "Complete") is not None:
        return "Complete"
    failed = _true(status, "Failed")
    return None if failed is None else _told(failed)


def stalled(status: Mapping[str, Any]) -> Stall | None:
    """Return what stalls the job; None while nothing does."""
    found = _true(status, "Stalled")
    if found is None:
        return None
    return Stall(_told(found), LONG_PATIENCE if found.get("reason") in TEMPORARY else PATIENCE)


def _true(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((one for one in status.get("conditions", []) if (one["type"], one["status"]) == (kind, "True")), None)


def _told(condition: Mapping[str, Any]) -> str:
    return f"{condition['type']}, {condition.get('reason')}: {condition.get('message')}"


def config_maps(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ConfigMaps that pods of these jobs mount and no document makes, sorted."""
    documents = list(documents)
    made = {one["metadata"]["name"] for one in documents if one["kind"] == "ConfigMap"}
    pods = [template.get("spec", {}) for document in documents for template in _templates(document)]
    volumes = [volume for pod in pods for volume in pod.get("volumes", [])]
    return sorted({volume["configMap"]["name"] for volume in volumes if "configMap" in volume} - made)


def _templates(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the templates of a job's pods; none of other documents."""
    if document["kind"] != "RLJob":
        return []
    spec = document["spec"]
    roles = [spec.get(role, {}) for role in ("coordinator", "trainer", "rollout")]
    return [owner.get("template", {}) for owner in (*roles, *spec.get("environments", []))]


def no_power_off(job: RLJob, local: bool) -> str | None:
    """Return why no node of this job's cluster is switched off; None if one is."""
    if job.spec.checkpoint.volume_claim_name is None:
        return "the job has no checkpoint volume, so no history is left to check"
    if not local:
        return "only the local cluster's nodes are switched off"
    return None


def tolerating(documents: Iterable[dict[str, Any]], taint: str) -> list[dict[str, Any]]:
    """Return the manifests; rollout machines and runners of jobs tolerate `taint`, in the form that kubectl takes.

    A soft taint outweighs the scheduler's wish to spread pods. Rollout machines would leave their own node empty.
    """
    what, _, effect = taint.partition(":")
    key, _, value = what.partition("=")
    # Through JSON: a copy by `deepcopy` would keep templates that roles share by a YAML alias the same object.
    result: list[dict[str, Any]] = [json.loads(json.dumps(document)) for document in documents]
    for spec in (document["spec"] for document in result if document["kind"] == "RLJob"):
        toleration = {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for owner in (spec.setdefault("rollout", {}), *spec.get("environments", [])):
            pod = owner.setdefault("template", {}).setdefault("spec", {})
            pod["tolerations"] = [*pod.get("tolerations", []), toleration]
    return result


def loses_a_node(job: RLJob) -> bool:
    """Return whether the demo shows that such a job survives a node's loss: asynchronous ones, and agents'."""
    return job.spec.mode is Mode.ASYNCHRONOUS or bool(job.spec.environments)
