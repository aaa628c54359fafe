"""Preview: what a local run would use and download, without starting it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.spec.environments import Environment
from rljob_api.spec.training import SwitchState
from rljob_runtime.cli.run.accelerators import requested_accelerators
from rljob_runtime.coordinator.core.settings import episode_rules
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.product_dtype import product_dtype
from rljob_runtime.models.source import package_config, package_folder
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.relay.manifest import ITEM_SIZES

GIB = 1 << 30
TRAINER_BYTES = 16
"""Bytes per weight of the trainer at least: float32 weight, gradient and two moments."""


def preview(spec: RLJobSpec, cache_dir: Path, present_accelerators: int) -> dict[str, str]:
    """Return lines for a person, by label: model, memory and accelerators."""
    what, config = model_source(spec.model.source, cache_dir)
    shape = _shape(spec, config)
    lines = {
        "model": what,
        "memory": shape if isinstance(shape, str) else _memory(spec, shape),
        "accelerators": f"{requested_accelerators(spec)} requested; this machine has {present_accelerators}",
    }
    if spec.environments:
        lines["environments"] = _environments(spec)
    if spec.adaptive_tensor_parallel.enabled:
        lines["tensor parallelism"] = _switches(spec, shape if isinstance(shape, ModelShape) else None)
    return lines


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
    if scheme != "package":
        return source, None
    try:
        return f"{source} (made from an installed package, no download)", package_config(name)
    except ModelError as error:
        return f"{source} ({error})", None


def present_folder(source: str, cache_dir: Path) -> Path | None:
    """Return the folder of a model that is on this machine. Nothing is downloaded or built."""
    scheme, separator, name = source.partition("://")
    if not separator:
        return Path(source)
    if scheme == "hf":
        cached = _in_hub_cache(name, cache_dir)
        return None if cached is None else cached.parent
    try:
        return package_folder(name, cache_dir) if scheme == "package" else None
    except ModelError:
        return None


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


def _shape(spec: RLJobSpec, config: Mapping[str, Any] | None) -> ModelShape | str:
    """Return the model's shape, or why it is unknown."""
    if config is None:
        return "unknown: the model's config is not on this machine yet"
    try:
        return ModelShape.from_config(spec.model.source, config)
    except (ValueError, TypeError):
        return "unknown: the model is no dense decoder"


def _environments(spec: RLJobSpec) -> str:
    """Return what runs each environment, and the limits of its episodes."""
    limits = episode_rules(spec)
    return "; ".join(
        f"{one.name} ({_runs(one)}, {one.runners} x {one.episodes_per_runner} episodes concurrently, at most "
        f"{limits[one.name].limits.turns} turns and {one.timeout_seconds:g} s each)"
        for one in spec.environments
    )


def _runs(environment: Environment) -> str:
    if environment.command is not None:
        return shlex.join(environment.command)
    if environment.function is not None:
        return f"function {environment.function}"
    tools = environment.tools or ()
    return f"tools {', '.join(tool.function or (tool.mcp.url if tool.mcp else '') for tool in tools)}"


_CARRIED = {
    SwitchState.AUTO: "moved or computed again, whichever is faster",
    SwitchState.RECOMPUTE: "computed again",
    SwitchState.MIGRATE: "moved",
}


def _switches(spec: RLJobSpec, shape: ModelShape | None) -> str:
    """Return what machines do with their tensor parallel size inside a round."""
    adaptive, sizes = spec.adaptive_tensor_parallel, spec.switch_sizes
    if not sizes:
        return "never switched inside a round: rollout.allowedTensorParallelSizes has no two sizes"
    try:
        for size in sizes:
            if shape is not None:
                shape.check_layout(size)
    except ValueError as error:
        return f"the job would end at its start: {error}"
    return (
        f"a machine switches between {', '.join(map(str, sizes))} inside a round if that saves {adaptive.min_gain:.3g} "
        f"of the time that is left (maxSwitches: {adaptive.max_switches}); keys and values are "
        f"{_CARRIED[adaptive.state]}"
    )


def _memory(spec: RLJobSpec, shape: ModelShape) -> str:
    device = "cuda" if spec.rollout.accelerators_per_machine else "cpu"
    weights = shape.parameters * ITEM_SIZES[product_dtype(spec.model.dtype.value, device)]
    replicas = spec.rollout.machines * spec.rollout.slots // spec.rollout.tensor_parallel_size
    digits = 0 if shape.parameters >= 1e7 else 1
    return (
        f"{shape.parameters / 1e6:,.{digits}f} million weights: the trainer needs at least "
        f"{_size(shape.parameters * TRAINER_BYTES)}, {_replicas(replicas, _size(weights))}"
    )


def _replicas(count: int, size: str) -> str:
    if count == 1:
        return f"the replica needs {size} and its KV cache"
    return f"{count} replicas need {size} each and their KV caches"


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.1f} MiB"
