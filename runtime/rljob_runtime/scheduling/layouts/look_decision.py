"""Look decision: what happens to a round's machines after one look, a loan or layout switches, never both.

Both shorten a round by its tail. A loan takes machines from generation, a switch makes them faster, and each prediction
assumes that the others stay as they are. So the one that saves more wins, and the next look sees its effect. A loan's
gain is that of the round. A switch's is that of its machine's generation, so it is bounded by what training gains:
another machine may end last, also one whose own end no decision predicts.
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
        unknown. It forbids them only where generation clearly ends earlier: a machine may also switch before another
        one that will end last."""
        switching = [one for one in switches.values() if one.outcome is SwitchOutcome.SWITCHED]
        margin = least_gain(max((one.seconds or 0.0 for one in switching), default=0.0))
        if switching and played is not None and played.training <= margin < played.generation:
            return cls(loan, _without(switches, SwitchOutcome.TRAINING_BOUND))
        if loan is None or loan.outcome is not LoanOutcome.LOANED or not switching:
            return cls(loan, switches)
        if _round_gain(switches.values(), played) > (inf if loan.gain is None else loan.gain):
            return cls(LoanDecision(LoanOutcome.NO_GAIN, gain=loan.gain), switches)
        return cls(loan, _without(switches, SwitchOutcome.NO_GAIN))


def _round_gain(decisions: Collection[SwitchDecision], played: RoundGain | None) -> float:
    """Return the seconds by which the round ends earlier with these switches.

    A round that could not be played may end with any machine whose end is unknown. Then nothing is known to be saved.
    """
    most = switches_gain(decisions)
    if played is not None:
        return min(most, played.training)
    unknown = any(one.without is None and one.outcome is not SwitchOutcome.IDLE for one in decisions)
    return 0.0 if unknown else most


def _without(switches: Mapping[str, SwitchDecision], reason: SwitchOutcome) -> dict[str, SwitchDecision]:
    """Return the decisions with a reason in place of each switch."""
    return {
        name: replace(one, outcome=reason, target=None) if one.outcome is SwitchOutcome.SWITCHED else one
        for name, one in switches.items()
    }


def switches_gain(decisions: Collection[SwitchDecision]) -> float:
    """Return the seconds by which the last machine with a known end ends earlier, with these switches.

    The round gains no more: an unknown end is not earlier with them.

    >>> switches_gain([SwitchDecision(SwitchOutcome.SWITCHED, 2, gain=4.0, without=10.0)])
    4.0
    """
    before = [one.without for one in decisions if one.without is not None]
    after = [_end(one, one.without) for one in decisions if one.without is not None]
    return max(before, default=0.0) - max(after, default=0.0)


def _end(decision: SwitchDecision, without: float) -> float:
    switches = decision.outcome is SwitchOutcome.SWITCHED
    return without - (decision.gain or 0.0) if switches else without
