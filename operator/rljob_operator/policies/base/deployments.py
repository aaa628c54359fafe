"""Deployments of a job's pods that are no machines: runners of environments and their egress proxy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_kube.manifests.objects import Deployment, DeploymentShape
from rljob_kube.manifests.pods import PodTemplateSpec
from rljob_operator.policies.base.names import owner_reference

PROGRESS_SECONDS = 300
"""Seconds in which new pods must become ready: an image of several gigabytes takes minutes."""


def shape_of(content: Any) -> str:
    """Return a short hash of what pods or other objects are made of, as labels have it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def owned_deployment(
    job: RLJob,
    name: str,
    selector: Mapping[str, str],
    labels: Mapping[str, str],
    template: PodTemplateSpec,
    replicas: int,
    most_unavailable: str,
) -> Deployment:
    """Render a Deployment that the job owns. Its shape is a hash of everything but labels and the number of pods.

    `labels`: its own, beside those of every one. `most_unavailable`: pods that are replaced at a time, as a share.
    """
    spec: DeploymentShape = {
        "selector": {"matchLabels": dict(selector)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": most_unavailable}},
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "revisionHistoryLimit": 1,
        "template": template,
    }
    common = {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {**common, **labels, c.LABEL_SHAPE: shape_of(spec)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {**spec, "replicas": replicas},
    }
