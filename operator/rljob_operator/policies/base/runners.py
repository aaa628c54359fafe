"""Runners: the Deployments of a job's environments, as values.

Only what the API server's own controllers and kubelets write is read: generations, counts, conditions and the states of
containers. Parsing is total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rljob_api.constants import LABEL_EGRESS, LABEL_EGRESS_OF, LABEL_ENVIRONMENT, LABEL_SHAPE
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason

REFUSED, OVERDUE = "ReplicaFailure", "Progressing"
"""Conditions of a Deployment. `REFUSED` is True: a pod cannot be created. `OVERDUE` is False: new pods are not ready in
time."""


PROXY = "egress proxy"
"""Stands for the Deployment of a job's egress proxy. No environment has such a name."""


@dataclass(frozen=True)
class RunnerPod:
    """A pod that runs one episode."""

    name: str
    uid: str
    created: datetime | None
    ready: bool = False
    used: bool = False
    """It has had its episode."""
    deleting: bool = False
    failing: bool = False
    """It does not start, and a person must act."""


@dataclass(frozen=True)
class Runners:
    """The runners of one environment: a Deployment and its pods."""

    name: str
    """Name of the environment."""
    uid: str = ""
    shape: str = ""
    wanted: int = 0
    """Number of pods that the Deployment names."""
    ready: int = 0
    pods: int = 0
    """Pods that exist, ending ones included where the server counts them."""
    current: bool = True
    """The controller has seen the newest number of pods."""
    deleting: bool = False
    refused: str | None = None
    """Why the API server refuses a pod."""
    egress: str = ""
    """Hash of what the pods need to reach others, and was applied before the Deployment. Empty: unknown."""
    overdue: str | None = None
    """Set when new pods are not ready in time."""
    broken: ConditionReason | None = None
    """Why a pod does not start, when a person must act. Read only while ready pods are missing."""
    single_episode_pods: tuple[RunnerPod, ...] | None = None
    """Its pods; None without `reset: Pod`."""

    @property
    def possible_pods(self) -> int:
        """Return the number of pods that may exist, also of those that the controller may be creating just now."""
        return max(self.pods, self.wanted, 0 if self.current else 1)


def parse_runners(item: Mapping[str, Any]) -> Runners | None:
    """Parse a Deployment from its API object; None when its labels name no environment."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels = meta.get("labels") or {}
    name = PROXY if LABEL_EGRESS_OF in labels else labels.get(LABEL_ENVIRONMENT)
    if not name:
        return None
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    refused, overdue = conditions.get(REFUSED) or {}, conditions.get(OVERDUE) or {}
    return Runners(
        name=name,
        uid=meta.get("uid", ""),
        shape=labels.get(LABEL_SHAPE, ""),
        wanted=spec.get("replicas", 1),
        ready=status.get("readyReplicas") or 0,
        pods=(status.get("replicas") or 0) + (status.get("terminatingReplicas") or 0),
        egress=labels.get(LABEL_EGRESS, ""),
        current=(status.get("observedGeneration") or 0) >= (meta.get("generation") or 0),
        deleting=bool(meta.get("deletionTimestamp")),
        refused=refused.get("message") or refused.get("reason", "") if refused.get("status") == "True" else None,
        overdue=overdue.get("message") or overdue.get("reason", "") if overdue.get("status") == "False" else None,
    )


def own_runners(uid: str, items: Iterable[Mapping[str, Any]]) -> dict[str, Runners]:
    """Return the runners that the job with this uid owns, by environment, and its egress proxy as `PROXY`."""
    found = {}
    for item in items:
        runners = parse_runners(item)
        owners = item["metadata"].get("ownerReferences") or ()
        if runners is not None and any(owner.get("uid") == uid for owner in owners):
            found[runners.name] = runners
    return found


def relevant_part(item: Mapping[str, Any]) -> Json:
    """Reduce a Deployment to what decisions need, without the template, which may hold a user's."""
    meta = {key: value for key, value in item["metadata"].items() if key not in ("managedFields", "annotations")}
    replicas = (item.get("spec") or {}).get("replicas", 1)
    return {"metadata": meta, "spec": {"replicas": replicas}, "status": item.get("status")}
