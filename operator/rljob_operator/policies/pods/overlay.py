"""Overlay: the user's template over the operator's part of a pod.

A template is free-form in the API: here it gets the types of manifests, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar, cast

from rljob_api import constants as c
from rljob_api.spec import PodTemplate
from rljob_kube.manifests.metadata import Named
from rljob_kube.manifests.pods import (
    Container,
    ContainerFields,
    ContainerSecurity,
    EnvVar,
    PodSecurity,
    PodSpec,
    VolumeMount,
)

Entry = TypeVar("Entry", bound=Named)
Security = TypeVar("Security", ContainerSecurity, PodSecurity)
Part = TypeVar("Part", bound=Mapping[str, object])


def user_spec(template: PodTemplate) -> PodSpec:
    """Return the user's part of a pod spec."""
    return cast(PodSpec, template.spec)


def user_container(template: PodTemplate, name: str = c.MAIN_CONTAINER) -> ContainerFields:
    """Return the user's part of a container, which may be empty."""
    return cast(ContainerFields, template.container(name))


def sidecars(template: PodTemplate, ours: Collection[str]) -> list[Container]:
    """Return the user's own containers. `ours`: names of the operator's."""
    return cast(list[Container], template.sidecars(ours))


def only(part: Part, keys: Collection[str]) -> Part:
    """Keep some fields of a part of a manifest. `keys` has the required ones."""
    return cast(Part, {key: value for key, value in part.items() if key in keys})


def over(ours: Security, user: Security | None) -> Security:
    """Merge a security context over the operator's. The user's keys win."""
    return {**ours, **user} if user else {**ours}


def by_name(entries: Iterable[Entry]) -> list[Entry]:
    """Keep one entry a name. A later entry replaces an earlier one."""
    return list({entry["name"]: entry for entry in entries}.values())


def by_path(mounts: Iterable[VolumeMount]) -> list[VolumeMount]:
    """Keep one mount a path. A later mount replaces an earlier one."""
    return list({mount["mountPath"]: mount for mount in mounts}.values())


def further_container(
    main: Container,
    user: ContainerFields,
    name: str,
    role: str,
    locked: ContainerSecurity,
    env: Iterable[EnvVar],
    mounts: Iterable[VolumeMount],
) -> Container:
    """Render a further container of the operator: its image with another role of the program.

    `user`: the template's part. `locked`: its security context. `env`: in their final order.
    """
    container: Container = {
        "image": main["image"],
        "command": ["python", "-m", "rljob_runtime.entrypoints"],
        "args": [role],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **user,
        "name": name,
        "securityContext": over(locked, user.get("securityContext")),
        "env": by_name(env),
        "volumeMounts": by_path([*mounts, *user.get("volumeMounts", [])]),
    }
    if "command" in user and "args" not in user:
        del container["args"]
    if "imagePullPolicy" in main:
        container.setdefault("imagePullPolicy", main["imagePullPolicy"])
    return container
