"""Templates: rules of the pod templates: fields of the operator, and templates of which no pod could be created."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rljob_api import constants as c
from rljob_api.errors import ABSENT, MOST_ERRORS, FieldError
from rljob_api.fields import DNS_NAME, Bytes
from rljob_api.parsing import pod_schema
from rljob_api.spec.template import PodTemplate

Errors = Iterator[FieldError]

RESERVED_MOUNTS = ("/etc/rljob", c.STATE_DIR, c.CLAIMS_DIR, c.REWARDS_DIR)
RESERVED_ENV = {c.ENV_POD_NAME, c.ENV_POD_UID, c.ENV_POD_IP, c.ENV_NODE_NAME}
RESERVED_PREFIX = "rljob-"

_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_CONTAINER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

# Fields that only the operator sets: their allowed values, and what to do instead.
_OURS: dict[str, tuple[tuple[object, ...], str]] = {
    "restartPolicy": (("Never",), "must be left out: the operator replaces a pod that failed, under a new name"),
    "hostNetwork": ((False,), "is not supported: pods have addresses of their own"),
    "hostPID": ((False,), "is not supported"),
    "hostIPC": ((False,), "is not supported; /dev/shm is there already"),
    "hostname": ((), "must be left out: the operator names the pods"),
    "hostnameOverride": ((), "must be left out: the operator names the pods"),
    "subdomain": ((), "must be left out: the operator makes the Service"),
    "nodeName": ((), "must be left out, or no replacement could go elsewhere; use nodeSelector or affinity"),
    "activeDeadlineSeconds": ((), "must be left out; use spec.runPolicy.activeDeadlineSeconds"),
    "priority": ((), "must be left out: the API server takes it from priorityClassName"),
    "ephemeralContainers": ((), "must be left out; use `kubectl debug`"),
}
_OURS_OF_RUNNERS = {**_OURS, "restartPolicy": ((), "must be left out: a runner that ended is started again")}
# API servers look these objects up before they read the pod: an impossible name causes an internal error (500).
_NAMED = ("runtimeClassName", "priorityClassName", "serviceAccountName")
_NEVER_EMPTY = "runtimeClassName"
"""For other fields an empty value means the default."""
_OBJECT_NAME = re.compile(rf"(?=.{{1,253}}\Z){DNS_NAME}")
# Further containers of the operator in the coordinator's pod.
_CONTAINERS = {
    c.REWARDS_CONTAINER: "rewards of kind Code and Python",
    c.HEAD_CONTAINER: "the head of Ray",
    c.GATEWAY_CONTAINER: "environments",
}
_BYTES: TypeAdapter[int] = TypeAdapter(Bytes)


def check_template(
    path: str,
    role: str,
    template: PodTemplate,
    accelerators: int,
    resource: str | None,
    ours: Collection[str] = (c.MAIN_CONTAINER,),
) -> Errors:
    """Find mistakes in the template of a role, or of an environment's runners.

    `accelerators` of `resource` (None: not as a resource) are the operator's request, `ours` the names of its
    containers.
    """
    yield from _metadata(f"{path}.metadata", template)
    spec = template.spec
    mistyped = list(islice(pod_schema.mistakes(f"{path}.spec", "PodSpec", spec), MOST_ERRORS + 1))
    if mistyped:  # what is below looks into values of the right types
        yield from mistyped
        return
    for field, (allowed, advice) in (_OURS_OF_RUNNERS if role == c.ROLE_ENVIRONMENT else _OURS).items():
        if field in spec and spec[field] not in allowed:
            yield FieldError(f"{path}.spec.{field}", spec[field], advice)
    for field in _NAMED:
        name = spec.get(field)
        if name is not None and (name or field == _NEVER_EMPTY) and _OBJECT_NAME.fullmatch(name) is None:
            yield FieldError(f"{path}.spec.{field}", name, "must be a name: lower-case letters, digits, '-', '.'")
    for field in ("serviceAccountName", "serviceAccount"):
        if role == c.ROLE_COORDINATOR and field in spec:
            advice = (
                "must be left out: the coordinator has an account that may report this job's status and nothing else"
            )
            yield FieldError(f"{path}.spec.{field}", spec[field], advice)
    if role != c.ROLE_COORDINATOR and spec.get("automountServiceAccountToken") is True:
        advice = "must be left out: only the coordinator speaks to the API; mount a projected token if you need one"
        yield FieldError(f"{path}.spec.automountServiceAccountToken", True, advice)
    for field in ("volumes", "resourceClaims"):
        yield from _ours_apart(f"{path}.spec.{field}", field, spec.get(field, []))
    yield from _containers(f"{path}.spec", role, spec, accelerators, resource, ours)


def _metadata(path: str, template: PodTemplate) -> Errors:
    for kind in ("labels", "annotations"):
        for key, value in getattr(template.metadata, kind).items():
            where = f"{path}.{kind}[{key}]"
            if key.startswith(f"{c.GROUP}/") or key == c.LABEL_MANAGED_BY:
                yield FieldError(where, value, "must be left out: this key is the operator's")
            elif _LABEL_NAME.fullmatch(key) is None:
                yield FieldError(where, value, "must have a key such as team or example.com/team")
            elif kind == "labels" and _LABEL_VALUE.fullmatch(value) is None:
                yield FieldError(where, value, "must be at most 63 letters, digits, '-', '_' and '.', as labels are")


def _ours_apart(path: str, field: str, objects: Sequence[Mapping[str, Any]]) -> Errors:
    for index, found in enumerate(objects):
        if found["name"].startswith(RESERVED_PREFIX):
            advice = f"must not begin with {RESERVED_PREFIX}: those {field} are the operator's"
            yield FieldError(f"{path}[{index}].name", found["name"], advice)


def _containers(
    path: str, role: str, spec: Mapping[str, Any], accelerators: int, resource: str | None, ours: Collection[str]
) -> Errors:
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind, [])):
            where, name = f"{path}.{kind}[{index}]", container["name"]
            if _CONTAINER_NAME.fullmatch(name) is None:
                yield FieldError(f"{where}.name", name, "must be at most 63 lower-case letters, digits and '-'")
            if name in seen:
                yield FieldError(f"{where}.name", name, "must be unique among containers and initContainers")
            seen.add(name)
            if kind == "containers" and name in ours:
                own = accelerators if name == c.MAIN_CONTAINER else 0
                reserved = (*RESERVED_MOUNTS, c.RAY_DIR) if c.HEAD_CONTAINER in ours else RESERVED_MOUNTS
                yield from _main(where, container, own, resource, reserved)
            elif role == c.ROLE_COORDINATOR and name in _CONTAINERS:
                advice = f"must be left out: that container is the operator's, for {_CONTAINERS[name]}"
                yield FieldError(f"{where}.name", name, advice)
            else:
                yield from _sidecar(where, container)


def _sidecar(path: str, container: Mapping[str, Any]) -> Errors:
    name = container["name"]
    if name == c.MAIN_CONTAINER:
        yield FieldError(
            f"{path}.name", name, f"must not be {c.MAIN_CONTAINER}, which is the container that runs the job"
        )
    elif not container.get("image"):
        advice = (
            f"is required: {name} is a sidecar, for only the container named {c.MAIN_CONTAINER} is merged into ours"
        )
        yield FieldError(f"{path}.image", container.get("image", ABSENT), advice)


def _main(
    path: str, container: Mapping[str, Any], accelerators: int, resource: str | None, folders: Collection[str]
) -> Errors:
    for index, variable in enumerate(container.get("env", [])):
        name = variable["name"]
        if name.startswith(c.ENV_PREFIX) or name in RESERVED_ENV:
            yield FieldError(f"{path}.env[{index}].name", name, "must be left out: the operator sets this variable")
    for index, mount in enumerate(container.get("volumeMounts", [])):
        target = mount["mountPath"].rstrip("/")
        if any(f"{target}/".startswith(f"{reserved}/") for reserved in folders):
            yield FieldError(f"{path}.volumeMounts[{index}].mountPath", target, "is the operator's; mount it elsewhere")
    for kind in ("limits", "requests"):
        amount = container.get("resources", {}).get(kind, {}).get(resource, accelerators)
        if str(amount) != str(accelerators):
            advice = f"must be left out, or be the number of accelerators the spec names ({accelerators})"
            yield FieldError(f"{path}.resources.{kind}[{resource}]", amount, advice)


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """Return the bytes of the container's memory limit; None without a readable one."""
    amount = container.get("resources", {}).get("limits", {}).get("memory")
    try:
        return _BYTES.validate_python(str(amount))
    except ValidationError:
        return None
