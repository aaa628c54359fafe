"""Stand-in for `verifiers.v1.utils.loaders`: one environment with one agent, whatever its id."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from verifiers.v1 import AgentConfig, Environment


def env_config_type(taskset_id: str, env_id: str = "") -> Any:
    """Return the type of an environment's settings."""
    if taskset_id == "absent":
        raise ModuleNotFoundError(f"taskset {taskset_id!r} not found")
    return SimpleNamespace(model_fields={"agent": SimpleNamespace(default=AgentConfig())})


def default_harness_id(taskset_id: str) -> str:
    """Return the harness of a taskset that brings none."""
    return "bash"


def resolve_env_config(data: dict[str, Any]) -> dict[str, Any]:
    """Return settings, checked."""
    return data


def load_environment(config: dict[str, Any]) -> Environment:
    """Return the environment of settings."""
    return Environment(config)
