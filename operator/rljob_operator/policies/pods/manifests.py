"""Manifests: pods of the operator with the user's template on top.

A template may set anything that the API admits. What identifies the pod stays: the operator's labels and variables, the
restart policy and the service account.

A template may have 256 KiB, and a role a thousand pods. So the shared part of a role's pods is rendered once. Each
manifest shares it, and the template's objects with it: callers must not change a manifest in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rljob_api import constants as c
from rljob_api.spec import Checkpoint, PodTemplate, RLJob, RLJobSpec
from rljob_api.status import Role
from rljob_kube.manifests.metadata import ObjectMeta, SharedMeta
from rljob_kube.manifests.pods import (
    Container,
    EnvVar,
    Pod,
    PodSpec,
    SharedPod,
    Volume,
    VolumeMount,
    VolumeSource,
)
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.deployments import shape_of
from rljob_operator.policies.base.names import (
    account,
    auth_secret,
    coordinator_address,
    owner_reference,
    selector_labels,
)
from rljob_operator.policies.base.observation import AVOIDS
from rljob_operator.policies.failure.nodes import affinity
from rljob_operator.policies.lifecycle.eviction import drains, grace_seconds, template_of
from rljob_operator.policies.pods import devices, gateway, ray_head
from rljob_operator.policies.pods.overlay import (
    by_name,
    by_path,
    further_container,
    over,
    sidecars,
    user_container,
    user_spec,
)
from rljob_operator.policies.pods.placement import name_scheduler, spread
from rljob_operator.policies.pods.security import LOCKED, pod_security

DRAIN = ("python", "-m", "rljob_runtime.entrypoints.pre_stop")
"""Handler that delays the end of a pod until its state is handed over."""

TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Path at which Kubernetes clients expect their token."""


_STATE_FOLDERS = {Role.COORDINATOR: "store", Role.TRAINER: "checkpoints"}


def render_pod(job: RLJob, new: NewPod, epoch: int, config: Config, avoided: Sequence[str] = ()) -> Pod:
    """Render the manifest of one incarnation of a machine. It avoids the `avoided` nodes."""
    return named(render_role(job, new.role, epoch, config, shape(job.spec, new.role, config), avoided), job, new)


def named(pod: SharedPod, job: RLJob, new: NewPod) -> Pod:
    """Render the manifest of one incarnation from the shared `pod` of its role."""
    metadata, spec = pod["metadata"], pod["spec"]
    main, *others = spec["containers"]
    own = {c.LABEL_MACHINE: new.machine, c.LABEL_INCARNATION: str(new.incarnation)}
    environment: list[EnvVar] = [
        {"name": c.ENV_MACHINE, "value": new.machine},
        {"name": c.ENV_INCARNATION, "value": str(new.incarnation)},
    ]
    own_metadata: ObjectMeta = {
        "name": c.pod_name(job.name, new.machine, new.incarnation),
        "namespace": metadata["namespace"],
        "labels": {**metadata["labels"], **own},
        "ownerReferences": metadata["ownerReferences"],
    }
    if "annotations" in metadata:
        own_metadata["annotations"] = metadata["annotations"]
    return {
        **pod,
        "metadata": own_metadata,
        "spec": {**spec, "containers": [{**main, "env": [*environment, *main["env"]]}, *others]},
    }


def render_role(
    job: RLJob, role: Role, epoch: int, config: Config, shape: str, avoided: Sequence[str] = ()
) -> SharedPod:
    """Render the shared part of a role's manifests. They avoid the `avoided` nodes."""
    template = template_of(job.spec, role)
    labels = {
        **{key: value for key, value in template.metadata.labels.items() if not key.startswith(f"{c.GROUP}/")},
        **selector_labels(job.name, role),
        c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE,
        c.LABEL_SHAPE: shape,
        c.LABEL_EPOCH: str(epoch),
    }
    annotations = {k: v for k, v in template.metadata.annotations.items() if not k.startswith(f"{c.GROUP}/")}
    metadata: SharedMeta = {"namespace": job.namespace, "labels": labels, "ownerReferences": [owner_reference(job)]}
    spec = _pod_spec(job, role, template, config)
    if _has_head(job, role):
        spec = ray_head.with_head(spec, template, _state_folder(job, role), LOCKED)
    if avoided:
        spec["affinity"] = affinity(spec.get("affinity"), avoided)
        annotations[AVOIDS] = ",".join(avoided)
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def charged(job: RLJob, role: Role, config: Config) -> PodSpec:
    """Return the spec of a role's pods as a quota counts it.

    Where the head's resources are a part of the coordinator's, the coordinator has all of them.
    """
    template = template_of(job.spec, role)
    spec = _pod_spec(job, role, template, config)
    if not _has_head(job, role) or ray_head.takes_of_main(template):
        return spec
    return ray_head.with_head(spec, template, _state_folder(job, role), LOCKED)


def shape(spec: RLJobSpec, role: Role, config: Config) -> str:
    """Hash what the spec requests of a role's pods. Pods of another shape are outdated."""
    content = {
        "template": template_of(spec, role).to_dict(),
        "accelerators": devices.count(spec, role),
        "image": config.runtime_image,
        "claims": spec.claims(),
        "checkpoint": spec.checkpoint.volume_claim_name,
        "scheduling": spec.scheduling.to_dict(),
    }
    accelerator = spec.accelerator_of(role.value.lower())
    if content["accelerators"] and accelerator.resource != spec.scheduling.accelerator_resource:
        content["accelerator"] = accelerator.to_dict()  # else as the shapes of earlier versions
    return shape_of(content)


def _pod_spec(job: RLJob, role: Role, template: PodTemplate, config: Config) -> PodSpec:
    """Render the pod spec: the operator's part, the user's part over it, then the fixed part."""
    user = user_spec(template)
    spec: PodSpec = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(job.spec) if drains(job.spec, role) else 30,
        **user,
        "securityContext": pod_security(user),
        "containers": _containers(job, role, template, config),
        "volumes": by_name([*_volumes(job, role), *user.get("volumes", [])]),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # the coordinator's token is among its volumes
    }
    if role is Role.COORDINATOR:
        spec["serviceAccountName"] = account(job.name)
    if role is Role.ROLLOUT:
        spec.setdefault("topologySpreadConstraints", [spread(selector_labels(job.name, Role.ROLLOUT))])
    devices.give(job, role, spec, spec["containers"][0])
    name_scheduler(spec, job)
    return spec


def _containers(job: RLJob, role: Role, template: PodTemplate, config: Config) -> list[Container]:
    main = _main_container(job, role, template, config)
    found = [main]
    if _has_rewards(job, role):
        found.append(_rewards_container(main, template))
    if _has_gateway(job, role):
        found.append(gateway.container(main, template, job.spec))
    ours = [container["name"] for container in found]
    if _has_head(job, role):
        ours.append(c.HEAD_CONTAINER)
    return [*found, *sidecars(template, ours)]


def _has_rewards(job: RLJob, role: Role) -> bool:
    return role is Role.COORDINATOR and job.spec.rewards_apart


def _has_gateway(job: RLJob, role: Role) -> bool:
    return role is Role.COORDINATOR and bool(job.spec.environments)


def _has_head(job: RLJob, role: Role) -> bool:
    return role is Role.COORDINATOR and job.spec.head_apart


def _rewards_container(main: Container, template: PodTemplate) -> Container:
    """Render the container that runs the code of rewards.

    It has the image of `main` and nothing else of it: no token, no Ray, no state, and only the secrets that the
    template names.
    """
    user = user_container(template, c.REWARDS_CONTAINER)
    mounts: list[VolumeMount] = [
        {"name": "rljob-rewards", "mountPath": c.REWARDS_DIR},
        {"name": "rljob-foreign", "mountPath": c.TMP_DIR},
    ]
    env: list[EnvVar] = [{"name": "HOME", "value": c.TMP_DIR}, *user.get("env", [])]
    return further_container(main, user, c.REWARDS_CONTAINER, "rewards", LOCKED, env, mounts)


def _main_container(job: RLJob, role: Role, template: PodTemplate, config: Config) -> Container:
    user = user_container(template)
    coordinator = role is Role.COORDINATOR
    container: Container = {
        "image": config.runtime_image,
        "command": ["python", "-m", "rljob_runtime.entrypoints"],
        "args": ["coordinator" if coordinator else "worker"],
        "ports": [{"name": "health", "containerPort": c.HEALTH_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": c.HEALTH_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **user,
        "name": c.MAIN_CONTAINER,
        "securityContext": over(LOCKED, user.get("securityContext")),
        "env": _environment(job, role, user.get("env", [])),
        "volumeMounts": by_path([*_mounts(job, role), *user.get("volumeMounts", [])]),
    }
    if drains(job.spec, role) and not coordinator:  # that one does it by itself, on SIGTERM
        container.setdefault("lifecycle", {"preStop": {"exec": {"command": list(DRAIN)}}})
    if "command" in user:  # a program of the user's own takes no argument and runs no hook of ours
        if "args" not in user:
            del container["args"]
        if "lifecycle" not in user:
            container.pop("lifecycle", None)
    if config.image_pull_policy is not None:
        container.setdefault("imagePullPolicy", config.image_pull_policy)
    return container


def _environment(job: RLJob, role: Role, user: Iterable[EnvVar]) -> list[EnvVar]:
    """Render the variables: the operator's, then the user's, then those that identify the pod.

    HOME and the like can be overridden. `named` adds the machine.
    """
    identity: list[EnvVar] = [
        {"name": c.ENV_NAME, "value": job.name},
        {"name": c.ENV_NAMESPACE, "value": job.namespace},
        {"name": c.ENV_UID, "value": job.metadata.uid},
        {"name": c.ENV_ROLE, "value": role.value.lower()},
        {"name": c.ENV_COORDINATOR_ADDRESS, "value": coordinator_address(job)},
        _field(c.ENV_POD_NAME, "metadata.name"),
        _field(c.ENV_POD_UID, "metadata.uid"),
        _field(c.ENV_POD_IP, "status.podIP"),
        _field(c.ENV_NODE_NAME, "spec.nodeName"),
    ]
    reserved = {c.ENV_MACHINE, c.ENV_INCARNATION, *(entry["name"] for entry in identity)}
    defaults: list[EnvVar] = [{"name": "HOME", "value": c.TMP_DIR}]
    free = [entry for entry in [*defaults, *user] if entry.get("name") not in reserved]
    return [*identity, *by_name(free)]


def _field(name: str, path: str) -> EnvVar:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _mounts(job: RLJob, role: Role) -> list[VolumeMount]:
    mounts: list[VolumeMount] = [
        {"name": "rljob-tmp", "mountPath": c.TMP_DIR},
        {"name": "rljob-shm", "mountPath": c.SHM_DIR},
        {"name": "rljob-auth", "mountPath": c.AUTH_DIR, "readOnly": True},
    ]
    if role is Role.COORDINATOR:
        mounts.append({"name": "rljob-token", "mountPath": TOKEN_DIR, "readOnly": True})
    if _has_rewards(job, role):
        mounts.append({"name": "rljob-rewards", "mountPath": c.REWARDS_DIR})
    if _has_gateway(job, role):
        mounts += gateway.shared_mount()
    if role in _STATE_FOLDERS:
        mounts.append({"name": "rljob-state", "mountPath": c.STATE_DIR, "subPath": _state_folder(job, role)})
    mounts += [
        {"name": f"rljob-claim-{index}", "mountPath": f"{c.CLAIMS_DIR}/{claim}", "readOnly": True}
        for index, claim in enumerate(job.spec.claims())
    ]
    return mounts


def _state_folder(job: RLJob, role: Role) -> str:
    """Return a role's folder on the state volume.

    The uid prevents a later job of the same name from using this one's state.
    """
    return f"{job.name}-{job.metadata.uid}/{_STATE_FOLDERS[role]}"


def _volumes(job: RLJob, role: Role) -> list[Volume]:
    volumes: list[Volume] = [
        {"name": "rljob-tmp", "emptyDir": {}},
        {"name": "rljob-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "rljob-auth", "secret": {"secretName": auth_secret(job), "defaultMode": 0o440}},
    ]
    if role is Role.COORDINATOR:
        volumes.append(_token_volume())
    if _has_rewards(job, role):
        volumes += [{"name": "rljob-rewards", "emptyDir": {}}, {"name": "rljob-foreign", "emptyDir": {}}]
    if _has_gateway(job, role):
        volumes += gateway.volumes(job)
    if role in _STATE_FOLDERS:
        volumes.append({"name": "rljob-state", **_state_source(job.spec.checkpoint)})
    volumes += [
        {"name": f"rljob-claim-{index}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for index, claim in enumerate(job.spec.claims())
    ]
    return volumes


def _token_volume() -> Volume:
    """Render what automounting would add.

    One container mounts it, and the token expires with the pod.
    """
    return {
        "name": "rljob-token",
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {
                    "downwardAPI": {
                        "items": [
                            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                        ]
                    }
                },
            ],
        },
    }


def _state_source(checkpoint: Checkpoint) -> VolumeSource:
    if checkpoint.volume_claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": checkpoint.volume_claim_name}}
    limit = checkpoint.empty_dir.size_limit if checkpoint.empty_dir is not None else None
    return {"emptyDir": {} if limit is None else {"sizeLimit": str(limit)}}
