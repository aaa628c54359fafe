"""Gateway: the container of the coordinator's pod that serves the runners of environments.

It has the image of `main` and nothing else of it: no token, no Ray, no state. The coordinator writes its config into a
folder that both mount, and only this container mounts the keys.
"""

from __future__ import annotations

from rljob_api import constants as c
from rljob_api.gateway_bounds import MIB, container_bytes
from rljob_api.spec import PodTemplate, RLJob, RLJobSpec
from rljob_kube.manifests.pods import (
    Container,
    ContainerFields,
    ContainerPort,
    EnvVar,
    KeyToPath,
    Quantities,
    Resources,
    SecretVolume,
    Volume,
    VolumeMount,
)
from rljob_operator.policies.pods.overlay import further_container, user_container
from rljob_operator.policies.pods.security import LOCKED

CPU_LIMIT, CPU_REQUEST = "2", "250m"
"""Amounts of a gateway whose template names none, where the coordinator's names any."""
REQUESTED_SHARE = 4
"""Its memory limit over its request: few jobs fill all bounds simultaneously."""

_VARIABLES = {
    "HOME": c.TMP_DIR,
    "HF_HUB_OFFLINE": "1",  # the coordinator has copied the tokenizer
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_SHARED, _KEYS, _TMP = "rljob-gateway", "rljob-gateway-keys", "rljob-gateway-tmp"


def container(main: Container, template: PodTemplate, spec: RLJobSpec) -> Container:
    """Render the container."""
    user = user_container(template, c.GATEWAY_CONTAINER)
    variables: list[EnvVar] = [{"name": name, "value": value} for name, value in _VARIABLES.items()]
    mounts: list[VolumeMount] = [
        *shared_mount(),
        {"name": _KEYS, "mountPath": c.GATEWAY_KEYS_DIR, "readOnly": True},
        {"name": _TMP, "mountPath": c.TMP_DIR},
    ]
    ours: ContainerFields = {"ports": ports(), **user}
    resources = default_resources(main.get("resources") or {}, spec)
    if resources:
        ours = {"resources": resources, **ours}
    env = [*variables, *user.get("env", [])]
    return further_container(main, ours, c.GATEWAY_CONTAINER, "gateway", LOCKED, env, mounts)


def ports() -> list[ContainerPort]:
    """Render the ports of the container."""
    return [
        {"name": "gateway", "containerPort": c.GATEWAY_PORT},
        {"name": "gateway-metrics", "containerPort": c.GATEWAY_METRICS_PORT},
    ]


def default_resources(main: Resources, spec: RLJobSpec) -> Resources:
    """Return resources of the kinds that `main` has. The memory follows from the episodes that the job may have open.

    So a quota on these kinds accepts the pod, and the pod keeps its QoS class.
    """
    memory = container_bytes(spec) // MIB
    amounts = {
        "cpu": (CPU_LIMIT, CPU_REQUEST),
        "memory": (_quantity(memory), _quantity(memory // REQUESTED_SHARE)),
    }
    limits, requests = main.get("limits") or {}, main.get("requests") or {}
    own_limits: Quantities = {}
    own_requests: Quantities = {}
    for name, (limit, request) in amounts.items():
        if name in limits:
            own_limits[name] = limit
        if name in requests:
            own_requests[name] = limit if requests[name] == limits.get(name) else request
    found: Resources = {}
    if own_limits:
        found["limits"] = own_limits
    if own_requests:
        found["requests"] = own_requests
    return found


def _quantity(mebibytes: int) -> str:
    """Return an amount as the API server writes it."""
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"


def shared_mount() -> list[VolumeMount]:
    """Render the mount of the folder that the coordinator writes for the gateway."""
    return [{"name": _SHARED, "mountPath": c.GATEWAY_DIR}]


def volumes(job: RLJob) -> list[Volume]:
    """Render the volumes."""
    items: list[KeyToPath] = [{"key": key, "path": key} for key in (c.CAPABILITY_KEY, c.RUNNERS_KEY)]
    secret = c.environments_secret_of(job.name, job.metadata.uid)
    keys: SecretVolume = {"secretName": secret, "defaultMode": 0o440, "items": items}
    return [{"name": _SHARED, "emptyDir": {}}, {"name": _TMP, "emptyDir": {}}, {"name": _KEYS, "secret": keys}]
