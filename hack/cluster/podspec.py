"""What a pod's spec means for a process node: pure functions from objects to values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .images import ENTRYPOINTS

Object = Mapping[str, Any]
Data = Callable[[str, str], Mapping[str, str] | None]
"""``(kind, name)`` → a ConfigMap's or Secret's decoded data, None when there is none. kind: configmaps, secrets."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class PodError(Exception):
    """The container cannot be made. ``reason`` is what kubelet would show."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def timestamp(seconds: float) -> str:
    """Unix time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by its value; unknown names stay, ``$$`` is one dollar."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def field(pod: Object, path: str, pod_ip: str, host_ip: str) -> str:
    """A downward API field. Raises PodError for one that does not exist."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := _MAP_FIELD.fullmatch(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
    }
    if path not in known:
        raise PodError("CreateContainerConfigError", f"fieldRef {path} is not supported on process nodes")
    return str(known[path])


def environment(container: Object, of_field: Callable[[str], str], data: Data) -> dict[str, str]:
    """The container's own variables, in Kubernetes' order: envFrom, then env, where later ones may use earlier ones."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if reference := source.get(key):
                found = _data(data, kind, reference)
                env.update({f"{source.get('prefix', '')}{k}": v for k, v in found.items()})
    for variable in container.get("env") or []:
        value = _value(variable, of_field, data)
        if value is not None:
            env[variable["name"]] = expand(value, env) if "value" in variable else value
    return env


def _value(variable: Object, of_field: Callable[[str], str], data: Data) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return str(variable.get("value", ""))
    if "fieldRef" in source:
        return of_field(source["fieldRef"]["fieldPath"])
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := source.get(key):
            found = _data(data, kind, reference)
            if reference["key"] in found:
                return found[reference["key"]]
            if reference.get("optional"):
                return None
            raise PodError("CreateContainerConfigError", f"{kind} {reference['name']} has no key {reference['key']}")
    raise PodError("CreateContainerConfigError", f"env {variable['name']}: {', '.join(source)} is not supported here")


def _data(data: Data, kind: str, reference: Object) -> Mapping[str, str]:
    found = data(kind, reference["name"])
    if found is None and not reference.get("optional"):
        raise PodError("CreateContainerConfigError", f'{kind} "{reference["name"]}" not found')
    return found or {}


def command(container: Object, env: Mapping[str, str]) -> list[str]:
    """The process to start. Raises PodError where only an image that nobody pulled could say."""
    entry = container.get("command") or ENTRYPOINTS.get(container["image"])
    if not entry:
        raise PodError("CreateContainerError", f"no command, and process nodes cannot look into {container['image']}")
    return [expand(word, env) for word in [*entry, *(container.get("args") or [])]]


def port(container: Object, value: int | str) -> int:
    """A probe's port, by number or by the container port's name."""
    if isinstance(value, int):
        return value
    for declared in container.get("ports") or []:
        if declared.get("name") == value:
            return int(declared["containerPort"])
    raise PodError("CreateContainerConfigError", f"no container port is named {value}")


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def backoff(restart: int) -> float:
    """Seconds before the nth restart: 1, 2, 4, … at most 60 (kubelet's go from 10 to 300)."""
    return float(min(60, 2 ** (restart - 1)))


@dataclass
class Tally:
    """A probe's thresholds: the verdict changes after so many equal results in a row."""

    success_threshold: int
    failure_threshold: int
    _successes: int = 0
    _failures: int = 0

    @classmethod
    def of(cls, probe: Object) -> Tally:
        return cls(int(probe.get("successThreshold", 1)), int(probe.get("failureThreshold", 3)))

    def record(self, ok: bool) -> bool | None:
        """The verdict after this result; None while there is not enough for one."""
        self._successes = self._successes + 1 if ok else 0
        self._failures = 0 if ok else self._failures + 1
        if self._successes >= self.success_threshold:
            return True
        if self._failures >= self.failure_threshold:
            return False
        return None


@dataclass
class ContainerState:
    """What is reported of a container."""

    name: str
    image: str
    state: dict[str, Any]
    last: dict[str, Any]
    ready: bool = False
    started: bool = False
    restarts: int = 0

    def report(self, uid: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "containerID": f"process://{uid}/{self.name}/{self.restarts}",
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.started,
            "state": self.state,
            "lastState": self.last,
        }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(exit_code: int, started: str, finished: str) -> dict[str, Any]:
    """``exit_code``: the shell's, 128 + signal where a signal ended it."""
    reason = "Completed" if exit_code == 0 else "Error"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": finished}}


def phase(init_done: bool, containers: Sequence[ContainerState], policy: str) -> str:
    """The pod's phase. A failed init container under restartPolicy Never is the caller's to see."""
    codes = [c.state["terminated"]["exitCode"] for c in containers if "terminated" in c.state]
    if init_done and len(codes) == len(containers) and not any(restarts(policy, c) for c in codes):
        return "Failed" if any(codes) else "Succeeded"
    started = any("running" in c.state or "terminated" in c.state or c.last for c in containers)
    return "Running" if init_done and started else "Pending"


def conditions(init_done: bool, ready: bool, before: Sequence[Object], now: str) -> list[dict[str, Any]]:
    """The pod's conditions, each with the time of its last change."""
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in before if c.get("lastTransitionTime")}
    wanted = {"PodScheduled": True, "Initialized": init_done, "ContainersReady": ready, "Ready": ready}
    result = []
    for kind, value in wanted.items():
        status = "True" if value else "False"
        old = times.get(kind)
        since = old[1] if old and old[0] == status else now
        result.append({"type": kind, "status": status, "lastTransitionTime": since})
    return result
