"""Alternate: has the machines of a chaos job switch their tensor parallel size at each look.

The toy's responses are too short for a switch to pay, so the job's own policy would make none. `patching` replaces the
policy in the coordinator's process. Machines move their KV in the first switch of a round, and compute it again in
every second one.
"""

from __future__ import annotations

from typing import Any

MODULE = "rljob_runtime.scheduling.layouts.adaptive_switches"
UNFINISHED, TOKENS = 2, 64
"""Unfinished responses that a machine must have, and tokens of each: KV moves in full blocks."""


def force(module: Any) -> None:
    """Replace the decisions of the policy in `module`: each machine switches to its next other size."""
    from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
    from rljob_runtime.scheduling.adaptive_tp.switch_costs import State

    def decide(policy: Any, look: Any) -> dict[str, SwitchDecision]:
        most = policy._rules.max_switches
        return {
            machine.name: SwitchDecision(
                SwitchOutcome.SWITCHED, machine.sizes[0], State.RECOMPUTE if machine.switches % 2 else State.MIGRATE
            )
            for machine in look.machines
            if machine.sizes and machine.switches < most
            if sum(tokens >= TOKENS for tokens in machine.responses.values()) >= UNFINISHED
        }

    module.AdaptiveSwitches.decide = decide


PATCHES = {MODULE: force}
"""Of each module what is done after its import."""
