"""Preview: what a local run would use and download, without starting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_runtime.cli.run.accelerators import requested_accelerators
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.relay.manifest import ITEM_SIZES

GIB = 1 << 30
TRAINER_BYTES = 16
"""Bytes per weight of the trainer at least: float32 weight, gradient and two moments."""


def preview(spec: RLJobSpec, cache_dir: Path, present_accelerators: int) -> dict[str, str]:
    """Return lines for a person, by label: model, memory and accelerators."""
    what, config = model_source(spec.model.source, cache_dir)
    return {
        "model": what,
        "memory": _memory(spec, config),
        "accelerators": f"{requested_accelerators(spec)} requested; this machine has {present_accelerators}",
    }


def model_source(source: str, cache_dir: Path) -> tuple[str, Mapping[str, Any] | None]:
    """Return where a model would come from, and its config if it is on this machine. Nothing is downloaded."""
    scheme, separator, name = source.partition("://")
    if not separator:
        folder = Path(source)
        where = "on this machine" if folder.is_dir() else "no such folder"
        return f"{source} ({where})", _config(folder / "config.json")
    if scheme == "hf":
        cached = _in_hub_cache(name, cache_dir)
        if cached is None:
            return f"{source} (would be downloaded into {cache_dir / 'hub'})", None
        return f"{source} (in the cache, {cached.parent})", _config(cached)
    return f"{source} (made from an installed package, no download)", None


def _in_hub_cache(name: str, cache_dir: Path) -> Path | None:
    """Return the cached config of a model of the hub, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name.partition("@")[0], "config.json", cache_dir=cache_dir / "hub")
    return Path(found) if isinstance(found, str) else None


def _config(path: Path) -> Mapping[str, Any] | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _memory(spec: RLJobSpec, config: Mapping[str, Any] | None) -> str:
    if config is None:
        return "unknown: the model's config is not on this machine yet"
    try:
        shape = ModelShape.from_config(spec.model.source, config)
    except (ValueError, TypeError):
        return "unknown: the model is no dense decoder"
    published = shape.parameters * ITEM_SIZES[spec.model.dtype.value]
    replicas = spec.rollout.machines * spec.rollout.slots // spec.rollout.tensor_parallel_size
    return (
        f"{shape.parameters / 1e6:,.0f} million weights: the trainer needs at least "
        f"{shape.parameters * TRAINER_BYTES / GIB:.1f} GiB, {replicas} replicas need "
        f"{published / GIB:.1f} GiB each and their KV caches"
    )
