"""Rules for the pod templates: what the operator sets and a user may not, and what no pod could be made from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rljob_api import constants as c
from rljob_api.errors import ABSENT, FieldError
from rljob_api.fields import Bytes
from rljob_api.placement import PodTemplate

Errors = Iterator[FieldError]

RESERVED_MOUNTS = ("/etc/rljob", c.STATE_DIR, c.CLAIMS_DIR, c.REWARDS_DIR)
RESERVED_ENV = {c.ENV_POD_NAME, c.ENV_POD_UID, c.ENV_POD_IP, c.ENV_NODE_NAME}
RESERVED_PREFIX = "rljob-"

_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_CONTAINER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")

# Fields of our pods that are not the user's: what they may hold, and what to do instead.
_OURS: dict[str, tuple[tuple[object, ...], str]] = {
    "restartPolicy": (("Never",), "must be left out: the operator replaces a pod that failed, under a new name"),
    "hostNetwork": ((False,), "is not supported: pods have addresses of their own"),
    "hostPID": ((False,), "is not supported"),
    "hostIPC": ((False,), "is not supported; /dev/shm is there already"),
    "hostname": ((), "must be left out: the operator names the pods"),
    "subdomain": ((), "must be left out: the operator makes the Service"),
    "nodeName": ((), "must be left out, or no replacement could go elsewhere; use nodeSelector or affinity"),
    "activeDeadlineSeconds": ((), "must be left out; use spec.runPolicy.activeDeadlineSeconds"),
    "priority": ((), "must be left out: the API server takes it from priorityClassName"),
    "ephemeralContainers": ((), "must be left out; use `kubectl debug`"),
}
# To tell a slip of the pen from a field of a newer Kubernetes: only what resembles one of these is refused.
POD_FIELDS = {
    *_OURS, "containers", "initContainers", "volumes", "nodeSelector", "tolerations", "affinity", "imagePullSecrets",
    "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "securityContext", "dnsPolicy", "dnsConfig",
    "terminationGracePeriodSeconds", "hostAliases", "topologySpreadConstraints", "runtimeClassName", "schedulerName",
    "priorityClassName", "os",
    "preemptionPolicy", "overhead", "enableServiceLinks", "shareProcessNamespace", "readinessGates", "schedulingGates",
    "resourceClaims", "hostUsers", "resources", "setHostnameAsFQDN",
}  # fmt: skip
_CONTAINER_FIELDS = {
    "name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resources", "volumeMounts",
    "volumeDevices", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "terminationMessagePath",
    "terminationMessagePolicy", "imagePullPolicy", "securityContext", "stdin", "stdinOnce", "tty", "resizePolicy",
    "restartPolicy",
}  # fmt: skip

_BYTES: TypeAdapter[int] = TypeAdapter(Bytes)


def check_template(
    path: str,
    role: str,
    template: PodTemplate,
    accelerators: int,
    resource: str | None,
    ours: Collection[str] = (c.MAIN_CONTAINER,),
) -> Errors:
    """Mistakes in one role's template; `accelerators` of `resource` (None: not as a resource) are what the operator
    will ask for, `ours` the names of the containers that it makes."""
    yield from _metadata(f"{path}.metadata", template)
    spec = template.spec
    yield from _misspelled(f"{path}.spec", spec, POD_FIELDS)
    for field, (allowed, advice) in _OURS.items():
        if field in spec and spec[field] not in allowed:
            yield FieldError(f"{path}.spec.{field}", spec[field], advice)
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


def _misspelled(path: str, node: Mapping[str, Any], known: set[str]) -> Errors:
    lower = {field.lower(): field for field in known}
    for field in node.keys() - known:
        close = difflib.get_close_matches(str(field).lower(), lower, n=1, cutoff=0.8)
        if close:
            yield FieldError(
                f"{path}.{field}", node[field], f"is not a field of {path}; did you mean {lower[close[0]]}?"
            )


def _objects(path: str, value: object) -> Iterator[FieldError | tuple[str, dict[str, Any]]]:
    """The (path, object) pairs of a list of named objects, and the mistakes in its form."""
    if not isinstance(value, list):
        yield FieldError(path, value, "must be a list")
        return
    for index, item in enumerate(value):
        where = f"{path}[{index}]"
        if not isinstance(item, dict):
            yield FieldError(where, item, "must be an object")
        elif not isinstance(item.get("name"), str):
            yield FieldError(f"{where}.name", item.get("name", ABSENT), "is required, a string")
        else:
            yield where, item


def _ours_apart(path: str, field: str, objects: object) -> Errors:
    for found in _objects(path, objects):
        if isinstance(found, FieldError):
            yield found
        elif found[1]["name"].startswith(RESERVED_PREFIX):
            advice = f"must not begin with {RESERVED_PREFIX}: those {field} are the operator's"
            yield FieldError(f"{found[0]}.name", found[1]["name"], advice)


def _containers(
    path: str, role: str, spec: Mapping[str, Any], accelerators: int, resource: str | None, ours: Collection[str]
) -> Errors:
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for found in _objects(f"{path}.{kind}", spec.get(kind, [])):
            if isinstance(found, FieldError):
                yield found
                continue
            where, container = found
            name = container["name"]
            if _CONTAINER_NAME.fullmatch(name) is None:
                yield FieldError(f"{where}.name", name, "must be at most 63 lower-case letters, digits and '-'")
            if name in seen:
                yield FieldError(f"{where}.name", name, "must be unique among containers and initContainers")
            seen.add(name)
            yield from _misspelled(where, container, _CONTAINER_FIELDS)
            if kind == "containers" and name in ours:
                yield from _main(where, container, accelerators if name == c.MAIN_CONTAINER else 0, resource)
            elif role == c.ROLE_COORDINATOR and name == c.REWARDS_CONTAINER:
                advice = "must be left out: that container is the operator's, for rewards of kind Code and Python"
                yield FieldError(f"{where}.name", name, advice)
            else:
                yield from _sidecar(where, container)
            yield from _resources(f"{where}.resources", container.get("resources", {}))


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


def _main(path: str, container: Mapping[str, Any], accelerators: int, resource: str | None) -> Errors:
    for found in _objects(f"{path}.env", container.get("env", [])):
        if isinstance(found, FieldError):
            yield found
        elif found[1]["name"].startswith(c.ENV_PREFIX) or found[1]["name"] in RESERVED_ENV:
            yield FieldError(f"{found[0]}.name", found[1]["name"], "must be left out: the operator sets this variable")
    mounts = container.get("volumeMounts", [])
    for index, mount in enumerate(mounts if isinstance(mounts, list) else []):
        target = str(mount.get("mountPath", "")).rstrip("/") if isinstance(mount, dict) else ""
        if any(f"{target}/".startswith(f"{reserved}/") for reserved in RESERVED_MOUNTS):
            yield FieldError(f"{path}.volumeMounts[{index}].mountPath", target, "is the operator's; mount it elsewhere")
    for where, name, amount in _amounts(f"{path}.resources", container.get("resources")):
        if name == resource and str(amount) != str(accelerators):
            advice = f"must be left out, or be the number of accelerators the spec names ({accelerators})"
            yield FieldError(where, amount, advice)


def _amounts(path: str, resources: object) -> Iterator[tuple[str, str, object]]:
    """(path, resource, amount) of every limit and request that is in its place."""
    for kind in ("limits", "requests"):
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            yield f"{path}.{kind}[{name}]", name, amount


def _resources(path: str, resources: object) -> Errors:
    if not isinstance(resources, dict):
        yield FieldError(path, resources, "must be an object")
        return
    for kind in ("limits", "requests"):
        if not isinstance(resources.get(kind, {}), dict):
            yield FieldError(f"{path}.{kind}", resources[kind], "must be an object")
    for where, _, amount in _amounts(path, resources):
        if isinstance(amount, bool) or _QUANTITY.fullmatch(str(amount)) is None:
            yield FieldError(where, amount, "must be a quantity such as 2, 500m or 4Gi")


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """Bytes of the container's memory limit; None where there is none that we can read."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    amount = limits.get("memory") if isinstance(limits, dict) else None
    try:
        return _BYTES.validate_python(str(amount))
    except ValidationError:
        return None
