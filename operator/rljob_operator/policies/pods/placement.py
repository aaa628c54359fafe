"""Placement: what the operator adds to a pod so that a scheduler places it, where the user's template says nothing."""

from __future__ import annotations

from rljob_api.spec import RLJob
from rljob_kube.manifests.pods import PodSpec, TopologySpread


def name_scheduler(spec: PodSpec, job: RLJob) -> None:
    """Add the job's scheduler and priority class to a pod spec that names none."""
    scheduling = job.spec.scheduling
    if scheduling.scheduler_name is not None:
        spec.setdefault("schedulerName", scheduling.scheduler_name)
    if scheduling.priority_class_name is not None:
        spec.setdefault("priorityClassName", scheduling.priority_class_name)


def spread(labels: dict[str, str]) -> TopologySpread:
    """Spread the pods with these labels over nodes where possible, so that the loss of one node costs few of them."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
