"""Looks: observe a round in its tail, and decide in one look whether machines are loaned or switch their layout.

The duration of a look grows with the responses, so none of it runs in the event loop. The round is described in a
thread while its stage waits: the stage owns it, so nothing changes meanwhile. The decision then needs no more of it,
and the round goes on. There is one look at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from rljob_runtime.coordinator.core.async_utils import Apart
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines, sized_engines
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layout_switch import SwitchableMachine, SwitchLook, with_responses
from rljob_runtime.scheduling.lending.gain import RoundSnapshot
from rljob_runtime.scheduling.look_decision import LookDecision
from rljob_runtime.scheduling.round_plan import Launch


@dataclass(frozen=True)
class Look:
    """A look that is due, with `done` of `total` responses complete.

    `considers_loan`: whether a loan is decided. `machines`: those whose switch is decided, without their responses.
    `computed_tokens`: loss tokens of complete groups that have their gradients."""

    done: int
    total: int
    considers_loan: bool
    machines: Sequence[SwitchableMachine]
    engines: ObservedEngines
    costs: SwitchCosts
    computed_tokens: int

    def switch_look(self, round_: RoundSnapshot, held: Sequence[tuple[Launch, int]], held_back: int = 0) -> SwitchLook:
        """Return what switches are decided from.

        `held`: the launches that generate, with their tokens so far. `held_back`: waiting responses that wait for a
        machine which switches: they are nothing that the others have to start first."""
        machines = with_responses(self.machines, held, len(round_.waiting) - held_back)
        return SwitchLook(machines, round_, self.engines.sizes, sized_engines(self.engines.speeds), self.costs)


class Looks:
    """The looks of one round. `notify` is called when one was decided."""

    def __init__(self, loans: LoanManager, switcher: Switcher, apart: Apart, notify: Callable[[], None]) -> None:
        self._loans = loans
        self._switcher = switcher
        self._apart = apart
        self._notify = notify
        self._looking = False
        self._decided = LookDecision()

    def begin(self, done: int, total: int, observed: Callable[[], ObservedEngines]) -> Look | None:
        """Return the look that is due with `done` of `total` responses complete; None if there is none.

        `decide` has to follow. A loan waits for the end of switches, and switches for that of a loan."""
        if self._looking:
            return None
        loan = not self._switcher.machines and self._loans.is_due(done, total)
        switch = not self._loans.loaned and self._switcher.is_due(done, total)
        if not loan and not switch:
            return None
        engines = observed()
        machines = self._switcher.candidates(engines.waiting) if switch else []
        if not loan and not machines:
            return None
        self._looking = True
        costs, computed = deepcopy(self._switcher.costs), self._loans.computed_tokens
        return Look(done, total, loan, machines, engines, costs, computed)

    async def decide(self, look: Look, switches: SwitchLook) -> None:
        """Decide, while the round goes on. `take` returns the result."""

        def work() -> LookDecision:
            loan = self._loans.decide(look.done, look.total, switches.round_) if look.considers_loan else None
            return LookDecision.of(loan, self._switcher.decide(switches) if switches.machines else {})

        self._decided = await self._apart(work, "look")
        self._looking = False
        self._notify()

    def take(self) -> LookDecision:
        """Return the decisions that were not taken yet."""
        decided, self._decided = self._decided, LookDecision()
        return decided
