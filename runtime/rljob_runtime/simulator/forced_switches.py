"""Forced switches: a switch policy that changes sizes at random, whether it pays or not."""

from __future__ import annotations

import math
import random

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook

LOOK_SECONDS = 0.5
SWITCH_SHARE = 0.3
STATES = (State.MIGRATE, State.RECOMPUTE)


class RandomSwitches:
    """A `scheduling.layouts.layout_switch.SwitchPolicy`. The same seed and events of a run give the same switches."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed}/forced-switches")
        # A stream of its own: the switches of a seed do not depend on it.
        self._states = random.Random(f"{seed}/forced-states")
        self._looked = -math.inf

    def begin_round(self) -> None:
        """Do nothing."""

    def is_due(self, done: int, total: int, now: float) -> bool:
        """Look every `LOOK_SECONDS`."""
        due = now - self._looked >= LOOK_SECONDS
        if due:
            self._looked = now
        return due

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        """Return any other size for some of the machines, in some of the looks; KV is moved in half of the switches."""
        found = {}
        for machine in look.machines:
            if machine.sizes and self._random.random() <= SWITCH_SHARE:
                target = self._random.choice(machine.sizes)
                found[machine.name] = SwitchDecision(SwitchOutcome.SWITCHED, target, self._states.choice(STATES))
        return found
