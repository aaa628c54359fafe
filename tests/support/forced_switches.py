"""Layout switches that a test orders, in place of those that the policy predicts to gain."""

from __future__ import annotations

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.layout_switch import SwitchableMachine, SwitchLook


class Script:
    """Switches a machine (None: any) to each of these sizes in turn, if enough of its responses are unfinished."""

    def __init__(self, machine: str | None, *sizes: int, unfinished: int = 2, state: State | None = None) -> None:
        self.state = state
        self.machine = machine
        self.left = list(sizes)
        self.unfinished = unfinished
        self.seen: list[SwitchableMachine] = []
        self._looked = 0.0

    def begin_round(self) -> None:
        pass

    def is_due(self, done: int, total: int, now: float) -> bool:
        due = now - self._looked > 0.1
        self._looked = now if due else self._looked
        return due

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        found = {}
        for machine in look.machines:
            if self.machine in (None, machine.name) and self.left and len(machine.responses) >= self.unfinished:
                self.seen.append(machine)
                found[machine.name] = SwitchDecision(SwitchOutcome.SWITCHED, self.left.pop(0), self.state)
        return found
