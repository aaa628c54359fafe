"""Runner start: why a pod of runners does not start although a person could make it start.

Only what the kubelet says of containers is repeated. The last words of a container are foreign code's: they are
compared with what an image without the runner says, and repeated nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.constants import LABEL_ENVIRONMENT, MAIN_CONTAINER, environment_deployment
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.observation import CONFIG_REASONS, IMAGE_REASONS

RUNNER = "rljob-env"
"""The package of the runner."""
INSTALL = "pip install ./envs, a folder of RLJob's sources"
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of containers that have ended before their program began."""
NOT_FOUND = frozenset({127, 128})
"""Exit codes without a program: a shell has not found it, and the container runtime has not."""
NO_PROGRAM = re.compile(r"executable file not found|exec: .*no such file or directory")
"""What a container runtime says of a program that is absent. It says other things of mounts."""
NO_MODULE = ("No module named rljob_env", "No module named 'rljob_env'")
"""What Python says where the package is absent."""

TEMPLATE = "spec.environments[].template"


def start_failure(job: str, environment: str, pods: Iterable[Mapping[str, Any]]) -> ConditionReason | None:
    """Return why a pod of an environment's Deployment does not start. None: nothing is known to prevent it."""
    deployment = environment_deployment(job, environment)
    return next((why for pod in pods if is_of(pod, deployment) and (why := pod_failure(pod)) is not None), None)


def pod_failure(pod: Mapping[str, Any]) -> ConditionReason | None:
    """Return why a pod of runners does not start. One that is being deleted counts no more."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    if meta.get("deletionTimestamp"):
        return None
    environment = (meta.get("labels") or {}).get(LABEL_ENVIRONMENT, "")
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    found = (_failure(environment, container) for container in containers if not container.get("ready"))
    return next((why for why in found if why is not None), None)


def relevant_part(item: Mapping[str, Any]) -> Json:
    """Reduce a pod to what decisions need."""
    meta = {key: value for key, value in item["metadata"].items() if key not in ("managedFields", "annotations")}
    return {"metadata": meta, "status": item.get("status")}


def is_of(pod: Mapping[str, Any], deployment: str) -> bool:
    """Tell whether a ReplicaSet of the Deployment has made the pod."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return any(
        one.get("kind") == "ReplicaSet" and str(one.get("name", "")).rpartition("-")[0] == deployment for one in owners
    )


def _failure(environment: str, container: Mapping[str, Any]) -> ConditionReason | None:
    name, image = container.get("name"), container.get("image", "")
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason"), waiting.get("message") or waiting.get("reason", "")
    where = f"environment {environment}: container {name}, image {image}"
    if reason in IMAGE_REASONS:
        advice = f"name an image in {TEMPLATE} that nodes can pull, with imagePullSecrets where its registry wants them"
        return ConditionReason("ImagePullFailed", f"{where}: {message}; {advice}")
    if name == MAIN_CONTAINER and (missing := _missing(container)):
        advice = f"install it there ({INSTALL}), or name an image that has it in {TEMPLATE}"
        return ConditionReason("RunnerMissing", f"{where} does not have the runner {RUNNER}: {missing}; {advice}")
    if reason in CONFIG_REASONS or (message := _not_started(container)):
        return ConditionReason("ContainerConfigError", f"{where}: {message}; correct {TEMPLATE}")
    return None


def _missing(container: Mapping[str, Any]) -> str:
    """Return what shows that an image has no program that starts the runner. Empty: nothing does."""
    waiting, ended = (container.get("state") or {}).get("waiting") or {}, _ended(container)
    said = waiting.get("message") if waiting.get("reason") in CONFIG_REASONS else None
    if any(NO_PROGRAM.search(text) for text in (str(said or ""), _not_started(container))):
        return "its command is not found in the image"
    code = ended.get("exitCode")
    if code in NOT_FOUND and not _not_started(container):
        return f"its command is not found in the image (exit code {code})"
    if code == 1 and any(words in str(ended.get("message") or "") for words in NO_MODULE):
        return "its Python has no module rljob_env"
    return ""


def _not_started(container: Mapping[str, Any]) -> str:
    """Return what the container runtime says of a container that it has not started. Empty: it has."""
    ended = _ended(container)
    return str(ended.get("message") or ended["reason"]) if ended.get("reason") in NOT_STARTED else ""


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a container ended last."""
    states = (container.get(name) or {} for name in ("state", "lastState"))
    return next((ended for state in states if (ended := state.get("terminated"))), {})
