"""Loans: decide whether machines of a round are loaned to training, start the loans and end them."""

from __future__ import annotations

import logging

from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.stream_training.stream import Streaming
from rljob_runtime.scheduling.lending.gain import LoanMeasurements, RoundSnapshot, predicted_gain
from rljob_runtime.scheduling.lending.policy import LoanDecision, LoanOutcome, LoanPolicy, LoanRules

log = logging.getLogger(__name__)


class LoanManager:
    """The loans of one round.

    `rules`: a verdict is the reason why no machine is ever loaned; None in a round that does not stream.
    """

    def __init__(
        self,
        rules: LoanRules | LoanOutcome | None,
        fleet: Fleet,
        streaming: Streaming,
        measured: LoanMeasurements,
        step: int,
    ) -> None:
        self._policy = LoanPolicy(rules) if isinstance(rules, LoanRules) else None
        self._fleet = fleet
        self._streaming = streaming
        self._measured = measured
        self._step = step
        self.decision = (
            LoanDecision(rules if isinstance(rules, LoanOutcome) else LoanOutcome.OUTSIDE_WINDOW) if rules else None
        )
        """The decision that started loans, or else the last one; None in a round that does not stream."""

    @property
    def loaned(self) -> frozenset[str]:
        """Machines on loan, which generate nothing."""
        return self._streaming.loaned

    @property
    def computed_tokens(self) -> int:
        """Loss tokens of the round that have their gradients."""
        return self._streaming.computed_tokens

    @property
    def training_token(self) -> float | None:
        """Seconds per loss token of the trainer; None before a measurement, and where it computes nothing early."""
        return self._measured.training.seconds if self.decision is not None and not self._streaming.broken else None

    def is_due(self, done: int, total: int) -> bool:
        """Return whether to decide about a loan now, with `done` of `total` responses complete."""
        if self._policy is None or not self._policy.is_due(done, total):
            return False
        if any(machine.worker is None for machine in self._fleet.weights.loaded()):
            self.decision = LoanDecision(LoanOutcome.NO_WORKER)
            return False
        if not self._streaming.accepts_contributions:
            self.decision = LoanDecision(LoanOutcome.TRAINER_UNAVAILABLE)
            return False
        return True

    def decide(self, done: int, total: int, round_: RoundSnapshot) -> LoanDecision:
        """Decide about a loan in this round. It may run in a thread."""
        assert self._policy is not None
        return self._policy.decide(
            done,
            total,
            round_.machines,
            round_.waiting,
            round_.lengths,
            lambda loan: predicted_gain(round_, loan, self._measured),
        )

    def begin(self, decision: LoanDecision | None) -> tuple[str, ...]:
        """Start the loan that a look decided; return the loaned machines. None: the look was not about a loan."""
        if self._policy is None or decision is None:
            return ()
        self.decision = decision
        log.info("round %d: %s", self._step, decision)
        if decision.outcome is not LoanOutcome.LOANED:
            return ()
        self._policy.begin()
        machines = {machine.name: machine for machine in self._fleet.weights.loaded()}
        # A machine may have left since the look.
        self._streaming.start_loans([machines[name] for name in decision.machines if name in machines], self._fleet)
        return decision.machines

    def policy_failed(self) -> None:
        """Record that the policy failed, unless there is none, or a loan has begun."""
        if self._policy is not None and not self.loaned:
            self.decision = LoanDecision(LoanOutcome.POLICY_FAILED)

    def end_all(self) -> None:
        """End all loans, because no other machine is left to generate."""
        if self.loaned:
            names = ", ".join(sorted(self.loaned))
            log.warning("round %d: %s generate again: no other machine is left", self._step, names)
            self._streaming.end_loans()
