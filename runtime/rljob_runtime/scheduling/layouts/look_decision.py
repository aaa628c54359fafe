"""Look decision: what happens to a round's machines after one look, a loan or layout switches, never both.

Both shorten a round by its tail. A loan takes machines from generation, a switch makes them faster, and each prediction
assumes that the others stay as they are. So the one that saves more wins, and the next look sees its effect. A loan's
gain is that of the round. A switch's is that of its machine's generation, so it is bounded by what training gains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome, least_gain
from rljob_runtime.scheduling.layouts.training_bound import RoundGain
from rljob_runtime.scheduling.lending.policy import LoanDecision, LoanOutcome


@dataclass(frozen=True)
class LookDecision:
    """The decisions of a look.

    `loan`: None if no loan was considered. `switches`: of the machines that could switch."""

    loan: LoanDecision | None = None
    switches: Mapping[str, SwitchDecision] = field(default_factory=dict)

    @classmethod
    def of(
        cls, loan: LoanDecision | None, switches: Mapping[str, SwitchDecision], played: RoundGain | None = None
    ) -> LookDecision:
        """Return the decision in which only the better one of loan and switches happens. The other one has no gain.

        A loan without a prediction is one that always starts. `played`: what the round gains by the switches; None if
        unknown. It decides only where generation clearly ends earlier: a machine may also switch before another one
        that will end last."""
        switching = [one for one in switches.values() if one.outcome is SwitchOutcome.SWITCHED]
        gain = switches_gain(switches.values())
        margin = least_gain(max((one.seconds or 0.0 for one in switching), default=0.0))
        if switching and played is not None and played.generation > margin:
            if played.training <= margin:
                return cls(loan, _without(switches, SwitchOutcome.TRAINING_BOUND))
            gain = min(gain, played.training)
        if loan is None or loan.outcome is not LoanOutcome.LOANED or not switching:
            return cls(loan, switches)
        if gain > (inf if loan.gain is None else loan.gain):
            return cls(LoanDecision(LoanOutcome.NO_GAIN, gain=loan.gain), switches)
        return cls(loan, _without(switches, SwitchOutcome.NO_GAIN))


def _without(switches: Mapping[str, SwitchDecision], reason: SwitchOutcome) -> dict[str, SwitchDecision]:
    """Return the decisions with a reason in place of each switch."""
    return {
        name: replace(one, outcome=reason, target=None) if one.outcome is SwitchOutcome.SWITCHED else one
        for name, one in switches.items()
    }


def switches_gain(decisions: Collection[SwitchDecision]) -> float:
    """Return the seconds by which the last machine ends earlier, with these switches. Unknown ends do not count.

    >>> switches_gain([SwitchDecision(SwitchOutcome.SWITCHED, 2, gain=4.0, without=10.0)])
    4.0
    """
    before = [one.without for one in decisions if one.without is not None]
    after = [_end(one, one.without) for one in decisions if one.without is not None]
    return max(before, default=0.0) - max(after, default=0.0)


def _end(decision: SwitchDecision, without: float) -> float:
    switches = decision.outcome is SwitchOutcome.SWITCHED
    return without - (decision.gain or 0.0) if switches else without
