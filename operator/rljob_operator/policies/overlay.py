"""Overlay: what a user's template has goes over what the operator made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]


def over(ours: Json, user: Mapping[str, Any] | None) -> Json:
    """Lay an object over ours: the user's keys win."""
    return {**ours, **(user or {})}


def by_name(entries: Iterable[Json]) -> list[Json]:
    """Keep one entry a name: a later one takes the earlier one's place."""
    return list({entry["name"]: entry for entry in entries}.values())


def by_path(mounts: Iterable[Json]) -> list[Json]:
    """Keep one mount a path: a later one takes the earlier one's place."""
    return list({mount["mountPath"]: mount for mount in mounts}.values())
