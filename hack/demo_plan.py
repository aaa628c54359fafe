"""Demo plan: selects the cluster, and decides whether an example fits it and whether a node may be lost."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api import RLJob
from rljob_api.spec.training import Mode

CLUSTERS = ("local", "kind", "own")


@dataclass(frozen=True)
class Choice:
    """A cluster of `CLUSTERS`, and the reason for it."""

    cluster: str
    why: str


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
    return found


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
    result = [copy.deepcopy(document) for document in documents]
    for spec in (document["spec"] for document in result if document["kind"] == "RLJob"):
        toleration = {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for owner in (spec.setdefault("rollout", {}), *spec.get("environments", [])):
            pod = owner.setdefault("template", {}).setdefault("spec", {})
            pod["tolerations"] = [*pod.get("tolerations", []), toleration]
    return result


def loses_a_node(job: RLJob) -> bool:
    """Return whether the demo shows that such a job survives a node's loss: asynchronous ones, and agents'."""
    return job.spec.mode is Mode.ASYNCHRONOUS or bool(job.spec.environments)
