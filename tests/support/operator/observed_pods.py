"""Pods as a policy observes them, without a cluster."""

from __future__ import annotations

from typing import Any

from rljob_api.status import Role
from rljob_operator.policies.base.observation import Pod


def running_pod(machine: str = "rollout-0", incarnation: int = 1, **changes: Any) -> Pod:
    role = Role(machine.partition("-")[0].capitalize())
    name = f"demo-{machine}-{incarnation}"
    defaults: dict[str, Any] = {"phase": "Running", "ready": True, "ip": f"10.0.0.{incarnation}"}
    return Pod(name, f"uid-{name}", role, machine, incarnation, **{**defaults, **changes})
