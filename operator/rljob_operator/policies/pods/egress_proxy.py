"""Egress proxy: the pod through which the runners of a job reach hosts by name.

It stands between foreign code and the network, so it is a pod of its own: it has no token, no key but that of proxy
keys, and no volume that another pod writes. It is no machine of the job. A Deployment replaces it.
"""

from __future__ import annotations

import json

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_kube.manifests.objects import Deployment, Service
from rljob_kube.manifests.pods import Container, KeyToPath, PodSpec, PodTemplateSpec, Projection
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deployments import owned_deployment
from rljob_operator.policies.base.names import owner_reference
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.pods import egress
from rljob_operator.policies.pods.environments import leave_lost_nodes
from rljob_operator.policies.pods.overlay import only, user_spec
from rljob_operator.policies.pods.security import LOCKED, pod_security

RESOURCES = {"cpu": "1", "memory": "512Mi"}
"""512 tunnels hold about 0.6 MiB each, if neither side takes what is sent to it."""
REQUESTS = {"cpu": "50m", "memory": "128Mi"}

_OF_COORDINATOR = ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName")
"""Fields of the coordinator's template that the proxy has too: where pods of the job may run, and whose images."""
_SETTINGS = "rljob-egress"


def to_change(job: RLJob, observed: Observed, config: Config, *, runs: bool) -> tuple[Deployment, ...]:
    """Return the proxy's Deployment if it is missing or not as wanted. `runs`: whether the job has runners."""
    seen = observed.proxy
    count = 1 if runs and egress.uses_proxy(job) else 0
    if (seen is None and not count) or (seen is not None and seen.deleting):
        return ()
    wanted = deployment(job, count, config)
    shape = wanted["metadata"]["labels"][c.LABEL_SHAPE]
    if seen is not None and not count:
        return (wanted,) if seen.wanted else ()
    unchanged = seen is not None and (seen.wanted, seen.shape) == (count, shape) and observed.children_present
    return () if unchanged else (wanted,)


def deployment(job: RLJob, replicas: int, config: Config) -> Deployment:
    """Render the Deployment. An edit of the hosts replaces the pod, before or after which there is none."""
    own = {c.LABEL_EGRESS_OF: job.name}
    template = _pod_template(job, config)
    name = c.egress_proxy(job.name)
    return owned_deployment(
        job, name, selector=own, labels=own, template=template, replicas=replicas, most_unavailable="100%"
    )


def service(job: RLJob) -> Service:
    """Render the Service by which runners find the proxy."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": c.egress_proxy(job.name),
            "namespace": job.namespace,
            "labels": {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "publishNotReadyAddresses": False,
            "selector": {c.LABEL_EGRESS_OF: job.name},
            "ports": [{"name": "proxy", "port": c.EGRESS_PORT, "protocol": "TCP"}],
        },
    }


def _pod_template(job: RLJob, config: Config) -> PodTemplateSpec:
    hosts = {one.name: egress.hosts(one) for one in job.spec.environments}
    settings = {
        "port": c.EGRESS_PORT,
        "keyFile": f"{c.EGRESS_DIR}/{c.PROXY_KEYS_KEY}",
        "hosts": {name: named for name, named in hosts.items() if named},
    }
    return {
        "metadata": {
            "labels": {c.LABEL_EGRESS_OF: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
            "annotations": {c.ANNOTATION_SETTINGS: json.dumps(settings, sort_keys=True)},
        },
        "spec": _pod_spec(job, config),
    }


def _pod_spec(job: RLJob, config: Config) -> PodSpec:
    user = only(user_spec(job.spec.coordinator.template), _OF_COORDINATOR)
    container: Container = {
        "name": c.MAIN_CONTAINER,
        "image": config.runtime_image,
        "command": ["python", "-m", "rljob_runtime.egress", c.EGRESS_SETTINGS],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": LOCKED,
        "resources": {"limits": {**RESOURCES}, "requests": {**REQUESTS}},
        "ports": [{"name": "proxy", "containerPort": c.EGRESS_PORT}],
        "volumeMounts": [{"name": _SETTINGS, "mountPath": c.EGRESS_DIR, "readOnly": True}],
    }
    if config.image_pull_policy is not None:
        container["imagePullPolicy"] = config.image_pull_policy
    path = f"metadata.annotations['{c.ANNOTATION_SETTINGS}']"
    file = c.EGRESS_SETTINGS.removeprefix(f"{c.EGRESS_DIR}/")
    key: KeyToPath = {"key": c.PROXY_KEYS_KEY, "path": c.PROXY_KEYS_KEY}
    sources: list[Projection] = [
        {"downwardAPI": {"items": [{"path": file, "fieldRef": {"apiVersion": "v1", "fieldPath": path}}]}},
        {"secret": {"name": c.egress_secret_of(job.name, job.metadata.uid), "items": [key]}},
    ]
    return {
        "enableServiceLinks": False,
        "tolerations": leave_lost_nodes(),
        **user,
        "securityContext": pod_security({}),
        "containers": [container],
        "volumes": [{"name": _SETTINGS, "projected": {"defaultMode": 0o440, "sources": sources}}],
        "automountServiceAccountToken": False,
    }
