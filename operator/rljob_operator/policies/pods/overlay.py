"""Overlay: the user's template over the operator's part of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]


def over(ours: Json, user: Mapping[str, Any] | None) -> Json:
    """Merge an object over the operator's. The user's keys win."""
    return {**ours, **(user or {})}


def by_name(entries: Iterable[Json]) -> list[Json]:
    """Keep one entry a name. A later entry replaces an earlier one."""
    return list({entry["name"]: entry for entry in entries}.values())


def by_path(mounts: Iterable[Json]) -> list[Json]:
    """Keep one mount a path. A later mount replaces an earlier one."""
    return list({mount["mountPath"]: mount for mount in mounts}.values())


def further_container(
    main: Json, user: Json, name: str, role: str, locked: Json, env: Iterable[Json], mounts: Iterable[Json]
) -> Json:
    """Render a further container of the operator: its image with another role of the program.

    `user`: the template's part. `locked`: its security context. `env`: in their final order.
    """
    container: Json = {
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
