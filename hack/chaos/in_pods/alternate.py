"""Alternate: has the machines of a chaos job switch their tensor parallel size, and move their KV, at each look.

The toy's responses are too short for a switch to pay, so the job's own policy would make none. A ConfigMap mounts this
file as `sitecustomize.py` in the coordinator's container. It replaces the policy when the coordinator imports it, and
does nothing in other processes. It imports nothing of the project before that, because every Python process reads it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "rljob_runtime.scheduling.layouts.adaptive_switches"
UNFINISHED, TOKENS = 2, 64
"""Unfinished responses that a machine must have, and tokens of each: KV moves in full blocks."""


class Patch(importlib.abc.MetaPathFinder):
    """Calls `force` on the policy's module after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the policy's module, which is patched when it is executed; None for others."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            force(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


def force(module: Any) -> None:
    """Replace the decisions of the policy in `module`: each machine switches to its next other size, with its KV."""
    from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
    from rljob_runtime.scheduling.adaptive_tp.switch_costs import State

    def decide(policy: Any, look: Any) -> dict[str, SwitchDecision]:
        most = policy._rules.max_switches
        return {
            machine.name: SwitchDecision(SwitchOutcome.SWITCHED, machine.sizes[0], State.MIGRATE)
            for machine in look.machines
            if machine.sizes and machine.switches < most
            if sum(tokens >= TOKENS for tokens in machine.responses.values()) >= UNFINISHED
        }

    module.AdaptiveSwitches.decide = decide


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Patch())
