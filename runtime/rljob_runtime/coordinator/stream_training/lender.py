"""Whether machines of a round go to training, asked as its responses end; and the loan itself, once it is made."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.stream_training.stream import Streaming
from rljob_runtime.scheduling.lending.gain import LoanMeasurements, RoundSnapshot, predicted_gain
from rljob_runtime.scheduling.lending.policy import LoanDecision, LoanOutcome, LoanPolicy, LoanRules

log = logging.getLogger(__name__)


class LoanManager:
    """The loans of one round. `rules`: a verdict lends nothing, for this reason; None in a round that does not
    stream."""

    def __init__(
        self,
        rules: LoanRules | LoanOutcome | None,
        fleet: Fleet,
        streaming: Streaming,
        measured: LoanMeasurements,
        step: int,
    ) -> None:
        self._lending = LoanPolicy(rules) if isinstance(rules, LoanRules) else None
        self._fleet = fleet
        self._streaming = streaming
        self._measured = measured
        self._step = step
        self.decision = (
            LoanDecision(rules if isinstance(rules, LoanOutcome) else LoanOutcome.OUTSIDE_WINDOW) if rules else None
        )
        """The one that lent, or else the last that was more than to wait; None in a round that does not stream."""

    @property
    def lent(self) -> frozenset[str]:
        """Machines that generate nothing now."""
        return self._streaming.lent

    def look(self, done: int, total: int, outlook: Callable[[int], RoundSnapshot]) -> tuple[str, ...]:
        """The machines that are lent from now on, with `done` of `total` responses done. `outlook(computed)` describes
        the round, of whose loss tokens `computed` have their gradients."""
        if self._lending is None or not self._lending.is_due(done, total):
            return ()
        machines = {machine.name: machine for machine in self._fleet.loaded()}
        if any(machine.worker is None for machine in machines.values()):
            self.decision = LoanDecision(LoanOutcome.NO_WORKER)
            return ()
        if not self._streaming.takes_sums:
            self.decision = LoanDecision(LoanOutcome.TRAINER_UNAVAILABLE)
            return ()
        ahead = outlook(self._streaming.computed_tokens)
        decision = self._lending.decide(
            done,
            total,
            ahead.machines,
            ahead.waiting,
            ahead.lengths,
            lambda loan: predicted_gain(ahead, loan, self._measured),
        )
        self.decision = decision
        log.info("round %d, %d of %d responses done: %s", self._step, done, total, decision)
        if decision.outcome is LoanOutcome.LOANED:
            # One may have left since it was looked at.
            self._streaming.lend([machines[name] for name in decision.machines if name in machines], self._fleet)
        return decision.machines

    def recall(self) -> None:
        """Nobody else is left to generate."""
        if self.lent:
            log.warning(
                "round %d: %s generate again: no other machine is left", self._step, ", ".join(sorted(self.lent))
            )
            self._streaming.recall()
