"""Leaks: what a job leaves behind, after its end and after its deletion.

An ended job keeps its Secrets and its Service, because it may be looked at. It has no pod that runs and no Deployment
with pods. Nothing is left of a deleted job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rljob_api.constants import LABEL_EGRESS_OF, LABEL_ENVIRONMENTS_OF, LABEL_JOB

from .faults.pods import NotPossible, Pods

KINDS = (
    "pods",
    "deployments",
    "replicasets",
    "secrets",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "leases",
    "networkpolicies",
    "poddisruptionbudgets",
)
"""Kinds of objects that the operator makes for a job, and those that Kubernetes makes for these."""
LABELS = (LABEL_JOB, LABEL_ENVIRONMENTS_OF, LABEL_EGRESS_OF)
SECONDS, PAUSE = 90.0, 1.0
"""Longest wait for pods to end and for Kubernetes to delete what a job owned, and the time between two looks."""

Json = Mapping[str, Any]


def of_ended(objects: Iterable[Json], job: str) -> list[str]:
    """Return the pods of an ended job that have not ended, and its Deployments with pods."""
    own = [one for one in objects if _is_of(one, job)]
    pods = [one for one in own if one["kind"] == "Pod"]
    running = [one for one in pods if (one.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    kept = [one for one in own if one["kind"] == "Deployment" and one["spec"].get("replicas", 1)]
    return sorted(map(_name, (*running, *kept)))


def of_deleted(objects: Iterable[Json], job: str, uid: str) -> list[str]:
    """Return what has the labels of a deleted job, or is owned by it."""
    return sorted(_name(one) for one in objects if _is_of(one, job) or uid in _owners(one))


def find(pods: Pods, job: str, ended: bool) -> list[str]:
    """Delete the job and return what it leaves behind; before that, if it has `ended`, what runs still.

    Raises `NotPossible` if the API server does not say."""
    uid = pods.kubectl("get", "rljob", job, "-o", "jsonpath={.metadata.uid}").strip()
    found = _until_none(lambda: of_ended(_objects(pods), job)) if ended else []
    pods.kubectl("delete", "rljob", job, "--wait=false")
    left = _until_none(lambda: of_deleted(_objects(pods), job, uid))
    return [*(f"{one} of the ended job" for one in found), *(f"{one} of the deleted job" for one in left)]


def count(pods: Pods, job: str, ended: bool) -> int | str:
    """Print what a job leaves behind and return the number; `unknown` if the API server does not say."""
    try:
        found = find(pods, job, ended)
    except NotPossible as error:
        print(f"chaos: what the job leaves behind is not known: {error}", flush=True)
        return "unknown"
    for one in found:
        print(f"chaos: leaked: {one}", flush=True)
    return len(found)


def _until_none(look: Callable[[], list[str]]) -> list[str]:
    """Return what is left when nothing is, or when the time is over."""
    end = time.monotonic() + SECONDS
    while (found := look()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return found


def _objects(pods: Pods) -> list[Json]:
    items: list[Json] = json.loads(pods.kubectl("get", ",".join(KINDS), "-o", "json"))["items"]
    return items


def _is_of(one: Json, job: str) -> bool:
    labels = one["metadata"].get("labels") or {}
    return any(labels.get(label) == job for label in LABELS)


def _owners(one: Json) -> set[str]:
    return {owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()}


def _name(one: Json) -> str:
    return f"{one['kind'].lower()}/{one['metadata']['name']}"
