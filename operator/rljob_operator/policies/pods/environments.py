"""Environments: the Deployments of their runners.

Runners are stateless: they lease episodes from the gateway, and the episodes of a lost runner are repeated. So a
Deployment replaces its pods, and they are no machines of the job. Runners execute foreign code: they have no token, and
no secret but their own key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from rljob_api import constants as c
from rljob_api.spec import Environment, RLJob
from rljob_api.spec.environments import EpisodeReset
from rljob_kube.manifests.objects import Deployment
from rljob_kube.manifests.pods import (
    Container,
    KeyToPath,
    PodSpec,
    PodTemplateSpec,
    Projection,
    Toleration,
    Volume,
    VolumeMount,
)
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deployments import owned_deployment
from rljob_operator.policies.base.names import coordinator_address
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.pods import egress
from rljob_operator.policies.pods.overlay import by_name, by_path, over, sidecars, user_container, user_spec
from rljob_operator.policies.pods.placement import name_scheduler, spread
from rljob_operator.policies.pods.security import LOCKED, pod_security

Placement = Callable[[Environment, PodTemplateSpec], PodTemplateSpec]
"""Adds the nodes of a quota to the pod template of an environment."""

LOST_NODE_SECONDS = 30
"""Seconds after which runners leave a node that does not answer. Nothing is lost with them."""
STEP = "25%"
"""Part of the runners that an update replaces together. It adds no pod, because a quota counts each of them."""

_SETTINGS, _TMP, _CODE, _POD = "rljob-environment", "rljob-tmp", "rljob-code", "rljob-pod"


def anywhere(environment: Environment, template: PodTemplateSpec) -> PodTemplateSpec:
    """Return the pod template as it is: without a quota, no nodes are assigned."""
    return template


def to_start(
    job: RLJob, observed: Observed, runners: Mapping[str, int], config: Config, place: Placement
) -> tuple[Deployment, ...]:
    """Return the Deployments of a running job that are missing or not as wanted. `runners`: the number of each.

    All of them are returned when the job's objects are checked again: that undoes what other clients have changed.
    """
    found = []
    for environment in job.spec.environments:
        seen = observed.runners.get(environment.name)
        if seen is not None and seen.deleting:
            continue  # its end is an event
        count, reach = runners[environment.name], egress.digest(job, environment, config.network_policy)
        wanted = deployment(job, environment, count, config, place, reach)
        state = (seen.wanted, seen.shape, seen.egress) if seen is not None else None
        if state != (count, wanted["metadata"]["labels"][c.LABEL_SHAPE], reach) or not observed.children_present:
            found.append(wanted)
    return tuple(found)


def to_stop(job: RLJob, observed: Observed, config: Config) -> tuple[Deployment, ...]:
    """Return the Deployments of a job that has no pods and still some runners.

    A job without quota has no nodes for them, so their places are chosen when it runs again.
    """
    seen = [(environment, observed.runners.get(environment.name)) for environment in job.spec.environments]
    return tuple(
        deployment(job, environment, 0, config, anywhere, runners.egress)  # no policy is applied here
        for environment, runners in seen
        if runners is not None and runners.wanted and not runners.deleting
    )


def deployment(
    job: RLJob, environment: Environment, replicas: int, config: Config, place: Placement, reach: str = ""
) -> Deployment:
    """Render the Deployment of an environment. Its shape is a hash of everything but the number of pods.

    `reach`: the hash of the objects of `egress` that were applied before. A Deployment without it has older ones.
    """
    return owned_deployment(
        job,
        c.environment_deployment(job.name, environment.name),
        selector=egress.runner_labels(job, environment),
        labels={c.LABEL_ENVIRONMENT: environment.name} | ({c.LABEL_EGRESS: reach} if reach else {}),
        template=place(environment, pod_template(job, environment, config)),
        replicas=replicas,
        most_unavailable=STEP,
    )


def pod_template(job: RLJob, environment: Environment, config: Config) -> PodTemplateSpec:
    """Render the pods of an environment: the operator's part, the user's part over it, then the fixed part."""
    template = environment.template
    own = {
        **egress.runner_labels(job, environment),
        c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE,
    }
    return {
        "metadata": {
            "labels": {**_foreign(template.metadata.labels), **own},
            "annotations": {
                **_foreign(template.metadata.annotations),
                c.ANNOTATION_SETTINGS: _settings(job, environment),
            },
        },
        "spec": _pod_spec(job, environment, config),
    }


def _foreign(entries: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if not key.startswith(f"{c.GROUP}/")}


def _settings(job: RLJob, environment: Environment) -> str:
    """Render the settings of a runner. They are a part of the pod template, so a change replaces the pods."""
    content = {
        "url": f"http://{coordinator_address(job)}:{c.GATEWAY_PORT}",
        "keyFile": c.ENVIRONMENT_KEY,
        "root": c.CODE_DIR,
        "environment": environment.runner_options(),
    }
    if environment.reset is EpisodeReset.POD:
        content["podFolder"] = c.POD_DIR
    return json.dumps(content, sort_keys=True)


def _pod_spec(job: RLJob, environment: Environment, config: Config) -> PodSpec:
    template = environment.template
    user = user_spec(template)
    main = _main_container(job, environment, config)
    spec: PodSpec = {
        "enableServiceLinks": False,
        "tolerations": leave_lost_nodes(),
        "topologySpreadConstraints": [spread(egress.runner_labels(job, environment))],
        **user,
        "securityContext": pod_security(user),
        "containers": [main, *sidecars(template, [c.MAIN_CONTAINER])],
        "volumes": by_name([*_volumes(job, environment, main), *user.get("volumes", [])]),
        "automountServiceAccountToken": False,
    }
    name_scheduler(spec, job)
    return spec


def leave_lost_nodes() -> list[Toleration]:
    """Render the tolerations of pods that leave a node soon after it is lost."""
    rest: Toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
    return [{"key": f"node.kubernetes.io/{state}", **rest} for state in ("not-ready", "unreachable")]


def _main_container(job: RLJob, environment: Environment, config: Config) -> Container:
    user = user_container(environment.template)
    mounts = user.get("volumeMounts", [])
    ours: list[VolumeMount] = [
        {"name": _SETTINGS, "mountPath": c.ENVIRONMENT_DIR, "readOnly": True},
        {"name": _TMP, "mountPath": c.TMP_DIR},
    ]
    if environment.reset is EpisodeReset.POD:
        ours.append({"name": _POD, "mountPath": c.POD_DIR})
    if all(mount["mountPath"].rstrip("/") != c.CODE_DIR for mount in mounts):
        ours.append({"name": _CODE, "mountPath": c.CODE_DIR})  # programs begin there, so it must exist
    container: Container = {
        "image": config.runtime_image,
        "command": ["python", "-m", "rljob_env", c.ENVIRONMENT_SETTINGS],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **user,
        "name": c.MAIN_CONTAINER,
        "securityContext": over(LOCKED, user.get("securityContext")),
        "env": by_name(
            [*egress.proxy_variables(job, environment), {"name": "HOME", "value": c.TMP_DIR}, *user.get("env", [])]
        ),
        "volumeMounts": by_path([*ours, *mounts]),
    }
    if config.image_pull_policy is not None:
        container.setdefault("imagePullPolicy", config.image_pull_policy)
    return container


def _volumes(job: RLJob, environment: Environment, main: Container) -> list[Volume]:
    """Render the volumes of the operator that `main` mounts. Of the job's Secret there is one key."""
    path = f"metadata.annotations['{c.ANNOTATION_SETTINGS}']"
    settings = c.ENVIRONMENT_SETTINGS.removeprefix(f"{c.ENVIRONMENT_DIR}/")
    key: KeyToPath = {"key": c.runner_key_item(environment.name), "path": c.ENVIRONMENT_KEY}
    sources: list[Projection] = [
        {"downwardAPI": {"items": [{"path": settings, "fieldRef": {"apiVersion": "v1", "fieldPath": path}}]}},
        {"secret": {"name": c.environments_secret_of(job.name, job.metadata.uid), "items": [key]}},
    ]
    volumes: list[Volume] = [
        {"name": _SETTINGS, "projected": {"defaultMode": 0o440, "sources": sources}},
        {"name": _TMP, "emptyDir": {}},
        {"name": _CODE, "emptyDir": {}},
        {"name": _POD, "emptyDir": {}},
    ]
    mounted = {mount["name"] for mount in main["volumeMounts"]}
    return [volume for volume in volumes if volume["name"] in mounted]
