"""One look, one winner: a table of loans and layout switches that a look decided, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.layouts.look_decision import LookDecision, switches_gain
from rljob_runtime.scheduling.layouts.training_bound import RoundGain
from rljob_runtime.scheduling.lending.policy import LoanDecision, LoanOutcome

LOANED, NO_LOAN = LoanOutcome.LOANED, LoanOutcome.NO_GAIN
SWITCHED, LATER, NO_GAIN = SwitchOutcome.SWITCHED, SwitchOutcome.LATER, SwitchOutcome.NO_GAIN
UNKNOWN, IDLE = SwitchDecision(SwitchOutcome.NOT_PREDICTED), SwitchDecision(SwitchOutcome.IDLE)


def loan(gain: float | None, outcome: LoanOutcome = LOANED) -> LoanDecision:
    return LoanDecision(outcome, ("a", "b") if outcome is LOANED else (), gain)


def switch(gain: float, without: float = 10.0, outcome: SwitchOutcome = SWITCHED) -> SwitchDecision:
    return SwitchDecision(outcome, 4 if outcome is SWITCHED else None, gain=gain, without=without)


@pytest.mark.parametrize(
    ("loan", "switches", "loaned", "switched"),
    [
        pytest.param(None, {}, False, "", id="nothing was due"),
        pytest.param(None, {"a": switch(2.0)}, False, "a", id="no loan was considered"),
        pytest.param(loan(1.0, NO_LOAN), {"a": switch(2.0)}, False, "a", id="the loan has no gain"),
        pytest.param(loan(1.0), {}, True, "", id="no machine can switch"),
        pytest.param(loan(1.0), {"a": switch(2.0, outcome=LATER)}, True, "", id="no machine switches now"),
        pytest.param(loan(3.0), {"a": switch(2.0)}, True, "", id="the loan saves more"),
        pytest.param(loan(2.0), {"a": switch(2.0)}, True, "", id="both save the same"),
        pytest.param(loan(1.0), {"a": switch(2.0)}, False, "a", id="the switch saves more"),
        pytest.param(loan(1.0), {"c": switch(2.0)}, False, "c", id="also of a machine that would not be loaned"),
        pytest.param(loan(None), {"a": switch(99.0, 100.0)}, True, "", id="a loan that always starts"),
        pytest.param(
            loan(1.5),
            {"a": switch(5.0, 10.0), "b": switch(0.0, 9.0, NO_GAIN)},
            True,
            "",
            id="another machine ends later",
        ),
        pytest.param(
            loan(0.5),
            {"a": switch(5.0, 10.0), "b": switch(0.0, 9.0, NO_GAIN)},
            False,
            "a",
            id="and the loan saves less",
        ),
        pytest.param(loan(3.0), {"a": switch(5.0, 10.0), "b": switch(5.0, 9.0)}, False, "ab", id="all machines switch"),
        pytest.param(loan(3.0), {"a": switch(5.0), "b": IDLE}, False, "a", id="an idle machine does not end last"),
        pytest.param(loan(3.0), {"a": switch(5.0), "b": UNKNOWN}, True, "", id="an unknown end may be the last one"),
    ],
)
def test_one_look_has_one_winner(loan, switches, loaned, switched):
    decided = LookDecision.of(loan, switches)
    assert (decided.loan is not None and decided.loan.outcome is LOANED) == loaned
    made = [name for name, one in decided.switches.items() if one.outcome is SWITCHED]
    assert "".join(made) == switched
    assert decided.switches.keys() == switches.keys()


BOUND = SwitchOutcome.TRAINING_BOUND


@pytest.mark.parametrize(
    ("loan", "played", "loaned", "outcome"),
    [
        pytest.param(None, None, False, SWITCHED, id="unknown: the machine's gain counts"),
        pytest.param(None, RoundGain(2.0, 2.0), False, SWITCHED, id="training gains as much"),
        pytest.param(None, RoundGain(2.0, 0.6), False, SWITCHED, id="less, but more than a quarter of the cost"),
        pytest.param(None, RoundGain(2.0, 0.5), False, BOUND, id="training gains a quarter of the cost"),
        pytest.param(None, RoundGain(2.0, -1.0), False, BOUND, id="training ends later"),
        pytest.param(None, RoundGain(0.5, 0.0), False, SWITCHED, id="generation ends hardly earlier: not judged"),
        pytest.param(loan(1.0), RoundGain(2.0, 2.0), False, SWITCHED, id="the switch saves more than the loan"),
        pytest.param(loan(1.0), RoundGain(2.0, 0.9), True, NO_GAIN, id="it saves the round less than the loan"),
        pytest.param(loan(1.0), RoundGain(2.0, 0.0), True, BOUND, id="it saves the round nothing"),
        pytest.param(loan(1.0, NO_LOAN), RoundGain(2.0, 0.0), False, BOUND, id="nor does the loan"),
        pytest.param(loan(1.0), RoundGain(0.0, 0.0), True, NO_GAIN, id="generation ends no earlier: the loan saves"),
        pytest.param(loan(1.0), RoundGain(0.5, 0.5), True, NO_GAIN, id="it ends hardly earlier: the loan saves more"),
        pytest.param(loan(0.4), RoundGain(0.5, 0.5), False, SWITCHED, id="it ends hardly earlier: the loan saves less"),
        pytest.param(loan(3.0), RoundGain(9.0, 9.0), True, NO_GAIN, id="no more than the last machine gains"),
        pytest.param(loan(1.0, NO_LOAN), RoundGain(0.5, 0.5), False, SWITCHED, id="without a loan it is not judged"),
    ],
)
def test_a_switch_is_worth_what_the_round_gains(loan, played, loaned, outcome):
    costly = SwitchDecision(SWITCHED, 4, seconds=2.0, gain=2.0, without=10.0)
    decided = LookDecision.of(loan, {"a": costly}, played)
    assert decided.switches["a"].outcome is outcome
    assert (decided.switches["a"].target is None) == (outcome is not SWITCHED)
    assert (decided.loan is not None and decided.loan.outcome is LOANED) == loaned


@pytest.mark.parametrize(
    "reason", [SwitchOutcome.WAITING, SwitchOutcome.MAX_SWITCHES, SwitchOutcome.ONE_SIZE, SwitchOutcome.NOT_PREDICTED]
)
@pytest.mark.parametrize("played", [None, RoundGain(0.0, 0.0)])
def test_a_loan_wins_against_a_switch_before_a_machine_that_ends_last(reason, played):
    """The switch saves its machine 5 s and the round nothing. The loan saves the round 3 s."""
    decided = LookDecision.of(loan(3.0), {"a": switch(5.0), "b": SwitchDecision(reason)}, played)
    assert decided.loan.outcome is LOANED
    assert decided.switches["a"] == SwitchDecision(NO_GAIN, gain=5.0, without=10.0)


DECISIONS = st.builds(
    switch, st.floats(0, 50), st.floats(0, 100), st.sampled_from([SWITCHED, LATER, NO_GAIN])
) | st.just(UNKNOWN)
LOANS = st.none() | st.builds(loan, st.floats(0, 100), st.sampled_from([LOANED, NO_LOAN])) | st.just(loan(None))


@given(LOANS, st.dictionaries(st.sampled_from("abcd"), DECISIONS))
def test_never_both_and_the_loser_has_no_gain(loan, switches):
    decided = LookDecision.of(loan, switches)
    loaned = decided.loan is not None and decided.loan.outcome is LOANED
    switched = {name for name, one in decided.switches.items() if one.outcome is SWITCHED}
    wanted = {name for name, one in switches.items() if one.outcome is SWITCHED}
    assert not (loaned and switched)
    assert switched in (set(), wanted)
    if loan is not None and loan.outcome is LOANED:
        assert loaned or switched, "one of both happens"
        assert loaned or decided.loan == LoanDecision(NO_LOAN, gain=loan.gain)
    else:
        assert decided == LookDecision(loan, switches)
    assert all(decided.switches[name].outcome is NO_GAIN for name in wanted - switched)
    assert all(decided.switches[name].target is None for name in wanted - switched)


@given(st.lists(DECISIONS, max_size=5))
def test_switches_save_no_more_than_the_last_machine_gains(decisions):
    gains = [one.gain for one in decisions if one.outcome is SWITCHED]
    assert 0 <= switches_gain(decisions) <= max(gains, default=0.0) + 1e-9
