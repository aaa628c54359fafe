"""Ray head: a sidecar of the coordinator's pod that holds no token of the API server.

Every pod of a job has the job's Ray token, which allows it to start a process on any node of the Ray cluster, the
head's too. The coordinator's container has the token of the API server. So the head runs in a sidecar (an init
container with `restartPolicy: Always`): it starts first, ends last, and keeps no pod alive.

The two share what a driver needs of its raylet: the folder of Ray's sockets, and the pod's network.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from rljob_api import constants as c
from rljob_api.spec import PodTemplate
from rljob_kube.manifests.pods import (
    Container,
    ContainerSecurity,
    EnvVar,
    KeyToPath,
    PodSpec,
    Quantities,
    Resources,
    Volume,
    VolumeMount,
)
from rljob_operator.policies.pods.capacity import amounts
from rljob_operator.policies.pods.overlay import further_container, only, user_container

LIMITS = {"cpu": Decimal(1), "memory": Decimal(2 << 30)}
REQUESTS = {"cpu": Decimal("0.1"), "memory": Decimal(512 << 20)}
"""Largest part of the coordinator's amounts for the head, and never more than half of one."""
_STEPS = {"cpu": Decimal("0.001"), "memory": Decimal(1)}

_IDENTITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions")
"""Fields of a security context that identify the user: a client of a container's sockets must be their owner."""


def takes_of_main(template: PodTemplate) -> bool:
    """Tell whether the head's resources are a part of the coordinator's: the template names none for it."""
    return "resources" not in template.container(c.HEAD_CONTAINER)


def with_head(spec: PodSpec, template: PodTemplate, folder: str, locked: ContainerSecurity) -> PodSpec:
    """Add the head to the pod spec of a coordinator.

    `folder`: the coordinator's on the state volume. `locked`: the security context of the operator's containers.
    """
    main, *others = spec["containers"]
    container: Container = {
        **main,
        "volumeMounts": [*main["volumeMounts"], {"name": "rljob-ray", "mountPath": c.RAY_DIR}],
    }
    head = _head(main, template, folder, locked)
    if takes_of_main(template):
        container["resources"], head["resources"] = split(main.get("resources") or {})
    for one in (container, head):
        if not one.get("resources"):
            one.pop("resources", None)
    return {
        **spec,
        "initContainers": [*spec.get("initContainers", []), head],
        "containers": [container, *others],
        "volumes": [*spec["volumes"], *_volumes(spec["volumes"])],
    }


def split(resources: Resources) -> tuple[Resources, Resources]:
    """Split the coordinator's resources between the coordinator and the head.

    The parts add up to the total, so a quota counts no more. Equal limits and requests stay equal, so the pod keeps its
    QoS class.
    """
    rest: Resources = {**resources}
    part: Resources = {}
    given_limits, given_requests = resources.get("limits") or {}, resources.get("requests") or {}
    limits, requests = amounts(given_limits), amounts(given_requests)
    shares = {name: _share(name, limits.get(name), requests.get(name)) for name in LIMITS}
    head = {name: limit for name, (limit, _) in shares.items() if limit is not None}
    if head:
        part["limits"] = _all_written(head)
        rest["limits"] = {**given_limits, **_all_written({name: limits[name] - head[name] for name in head})}
    head = {name: request for name, (_, request) in shares.items() if request is not None}
    if head:
        part["requests"] = _all_written(head)
        rest["requests"] = {**given_requests, **_all_written({name: requests[name] - head[name] for name in head})}
    return rest, part


def _share(name: str, limit: Decimal | None, request: Decimal | None) -> tuple[Decimal | None, Decimal | None]:
    """Return the head's limit and request.

    No container's request is above its limit.
    """
    of_limit = None if limit is None else _down(min(LIMITS[name], limit / 2), _STEPS[name])
    if request is None:  # the API server takes the limit for it
        return of_limit, None
    of_request = _down(min(REQUESTS[name], request / 2), _STEPS[name])
    if limit is not None and of_limit is not None:
        of_request = min(of_limit, max(of_request, request - (limit - of_limit)))
    return of_limit, of_request


def _down(amount: Decimal, step: Decimal) -> Decimal:
    return amount // step * step


def _all_written(found: dict[str, Decimal]) -> Quantities:
    return {name: _written(name, amount) for name, amount in found.items()}


def _written(name: str, amount: Decimal) -> str:
    if amount != amount.to_integral_value():
        return f"{(amount * 1000).to_integral_value(ROUND_CEILING)}m"
    number = int(amount)
    for suffix, size in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if name == "memory" and number and number % size == 0:
            return f"{number // size}{suffix}"
    return str(number)


def _head(main: Container, template: PodTemplate, folder: str, locked: ContainerSecurity) -> Container:
    """Render the container: Ray's token and tables, and nothing else of the coordinator's."""
    user = user_container(template, c.HEAD_CONTAINER)
    security: ContainerSecurity = {**locked, **only(main["securityContext"], _IDENTITY)}
    env = _environment(main["env"], user.get("env", []))
    head = further_container(main, user, c.HEAD_CONTAINER, "head", security, env, _mounts(folder))
    return {**head, "restartPolicy": "Always"}


def _environment(main: list[EnvVar], user: list[EnvVar]) -> list[EnvVar]:
    """Return Ray's own settings as the coordinator has them, and no secret."""
    ray = [entry for entry in main if entry["name"].startswith("RAY_") and "value" in entry]
    address = [entry for entry in main if entry["name"] == c.ENV_POD_IP]
    return [{"name": "HOME", "value": c.TMP_DIR}, *ray, *user, *address]


def _mounts(folder: str) -> list[VolumeMount]:
    return [
        {"name": "rljob-head-tmp", "mountPath": c.TMP_DIR},
        {"name": "rljob-ray", "mountPath": c.RAY_DIR},
        {"name": "rljob-head-shm", "mountPath": c.SHM_DIR},
        {"name": "rljob-head-auth", "mountPath": c.AUTH_DIR, "readOnly": True},
        {"name": "rljob-state", "mountPath": f"{c.STATE_DIR}/{c.RAY_TABLES}", "subPath": f"{folder}/{c.RAY_TABLES}"},
    ]


def _volumes(pod: list[Volume]) -> list[Volume]:
    """Render the head's volumes besides the pod's own.

    Of the job's Secret it has Ray's token, and no key of relays.
    """
    (auth,) = (volume["secret"] for volume in pod if volume["name"] == "rljob-auth")
    token: KeyToPath = {"key": c.AUTH_RAY_TOKEN, "path": c.AUTH_RAY_TOKEN}
    return [
        {"name": "rljob-ray", "emptyDir": {}},
        {"name": "rljob-head-tmp", "emptyDir": {}},
        {"name": "rljob-head-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "rljob-head-auth", "secret": {**auth, "items": [token]}},
    ]
