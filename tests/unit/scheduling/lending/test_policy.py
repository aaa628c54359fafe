"""The lending policy: tables for when and what, properties for what must never happen."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.lending.policy import (
    ExpectedLengths,
    LoanableMachine,
    LoanDecision,
    LoanOutcome,
    LoanPolicy,
    LoanRules,
    Unfinished,
    half_of,
    peak_kv_tokens,
)
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival

ROOM = 1000
FORTY = ExpectedLengths(Survival((40,)), 100)


def machines(*loads: int, kv: int = ROOM) -> list[LoanableMachine]:
    """Machines with so many responses of 10 + 10 tokens each."""
    return [LoanableMachine(f"rollout-{i}", kv, (Unfinished(10, 10),) * load) for i, load in enumerate(loads)]


def look(
    lending: LoanPolicy, done: int, fleet: list[LoanableMachine], gain: float = 1.0, lengths=(40,), waiting=()
) -> LoanDecision:
    return begun(lending, done, 100, fleet, waiting, ExpectedLengths(Survival(lengths), 100), lambda names: gain)


def begun(lending: LoanPolicy, *seen) -> LoanDecision:
    """Return the decision of a look; a loan starts."""
    decision = lending.decide(*seen)
    if decision.outcome is LoanOutcome.LOANED:
        lending.begin()
    return decision


@pytest.mark.parametrize(
    ("done", "verdict"),
    [
        (0, LoanOutcome.OUTSIDE_WINDOW),
        (19, LoanOutcome.OUTSIDE_WINDOW),
        (20, LoanOutcome.LOANED),
        (50, LoanOutcome.LOANED),
        (51, LoanOutcome.OUTSIDE_WINDOW),
        (100, LoanOutcome.OUTSIDE_WINDOW),
    ],
)
def test_the_window(done, verdict):
    assert look(LoanPolicy(), done, machines(1, 1)).outcome is verdict


@pytest.mark.parametrize(
    ("loads", "loaned"),
    [
        ((), ()),
        ((1,), ()),
        ((2, 1), ("rollout-1",)),
        ((1, 1), ("rollout-0",)),
        ((3, 2, 1), ("rollout-2",)),
        ((0, 4, 1, 2), ("rollout-0", "rollout-2")),
    ],
)
def test_half_of_the_machines_goes_and_has_the_least_to_move(loads, loaned):
    assert half_of(machines(*loads)) == loaned


@pytest.mark.parametrize(
    ("fleet", "settings", "verdict"),
    [
        (machines(9), {}, LoanOutcome.TOO_FEW_MACHINES),
        # Two responses of 10 + 10 tokens that end at 40: 100 tokens at their end.
        (machines(1, 1, kv=100), {}, LoanOutcome.LOANED),
        (machines(1, 1, kv=99), {}, LoanOutcome.KV_CACHE_FULL),
        # Nothing as long was seen: they may go to the limit of 100.
        (machines(1, 1, kv=219), {"lengths": ()}, LoanOutcome.KV_CACHE_FULL),
        (machines(1, 1, kv=220), {"lengths": ()}, LoanOutcome.LOANED),
        # What waits at no engine needs its place too.
        (machines(1, 1, kv=100), {"waiting": (Unfinished(1),)}, LoanOutcome.KV_CACHE_FULL),
        (machines(1, 1), {"gain": 0.0}, LoanOutcome.NO_GAIN),
        (machines(1, 1), {"gain": -2.0}, LoanOutcome.NO_GAIN),
        (machines(1, 1), {"gain": float("nan")}, LoanOutcome.NO_GAIN),
    ],
)
def test_the_verdict(fleet, settings, verdict):
    decision = look(LoanPolicy(), 30, fleet, **settings)
    assert decision.outcome is verdict
    assert bool(decision.machines) is (verdict is LoanOutcome.LOANED)


def test_it_checks_every_twentieth_and_loans_once():
    lending, asked = LoanPolicy(), []

    def gain(names):
        asked.append(names)
        return 1.0 if len(asked) == 3 else -1.0

    verdicts = {done: begun(lending, done, 100, machines(1, 1), (), FORTY, gain).outcome for done in range(18, 60)}
    assert [done for done, verdict in verdicts.items() if verdict is LoanOutcome.NO_GAIN] == [20, 25]
    assert [done for done, verdict in verdicts.items() if verdict is LoanOutcome.LOANED] == [30]
    assert {verdicts[done] for done in range(31, 60)} == {LoanOutcome.OUTSIDE_WINDOW}
    assert len(asked) == 3


def test_the_prediction_is_asked_for_the_machines_that_would_go():
    seen = []
    decision = LoanPolicy().decide(30, 100, machines(2, 0, 1, 3), (), FORTY, lambda names: seen.append(names) or 2.5)
    assert seen == [decision.machines] == [("rollout-1", "rollout-2")]
    assert decision.gain == 2.5


def test_a_fixed_trigger_loans_what_fits_without_a_prediction():
    def gain(names):
        raise AssertionError("nothing should ask")

    lending = LoanPolicy(LoanRules(0.4, 1.0, requires_gain=False))
    tight = [begun(lending, done, 100, machines(1, 1, kv=99), (), FORTY, gain).outcome for done in (39, 40)]
    assert tight == [LoanOutcome.OUTSIDE_WINDOW, LoanOutcome.KV_CACHE_FULL]
    looks = [begun(lending, done, 100, machines(1, 1), (), FORTY, gain) for done in (44, 45, 50)]
    assert [look.outcome for look in looks] == [
        LoanOutcome.OUTSIDE_WINDOW,
        LoanOutcome.LOANED,
        LoanOutcome.OUTSIDE_WINDOW,
    ]
    assert looks[1] == LoanDecision(LoanOutcome.LOANED, ("rollout-0",))


@pytest.mark.parametrize(
    ("low", "high", "every"), [(0.6, 0.5, 0.05), (-0.1, 0.5, 0.05), (0.2, 1.1, 0.05), (0.2, 0.5, 0)]
)
def test_rules_that_make_no_sense_are_refused(low, high, every):
    with pytest.raises(ValueError, match="must"):
        LoanRules(low, high, every)


RESPONSES = st.lists(st.builds(Unfinished, st.integers(0, 20), st.integers(0, 30)), max_size=8)
LENGTHS = st.lists(st.integers(1, 40), max_size=6)


def plainly(generated: int, lengths: list[int], most: int) -> float:
    longer = [length for length in lengths if length > generated]
    return fmean(min(length, most) for length in longer) if longer else most


@given(LENGTHS, st.integers(0, 45), st.integers(1, 45))
def test_expected_lengths_are_those_of_the_plain_formula(lengths, generated, most):
    assert ExpectedLengths(Survival(lengths), most).of(generated) == pytest.approx(plainly(generated, lengths, most))


def test_what_was_stopped_or_still_runs_is_longer_than_it_is():
    """Of 16 that came to 10 tokens two ended at 20, and 14 were stopped just before: those may be of any length."""
    ended = [1, 2, 3, 4, 20, 20]
    assert ExpectedLengths(Survival(ended), 100).of(10) == ExpectedLengths(Survival(ended), 100).at(10, 0.9) == 20
    expected = ExpectedLengths(
        Survival.of([*map(LengthObservation, ended), *[LengthObservation(19, ended=False)] * 14]), 100
    )
    assert expected.of(10) == pytest.approx((2 * 20 + 14 * 100) / 16)
    assert [expected.at(10, share) for share in (0.1, 0.2, 0.5)] == [20, 27, 54]
    # How long those are that were stopped at 15 tokens, others tell.
    expected = ExpectedLengths(Survival([*ended, 20, 20, 20, 60], [15] * 14), 100)
    assert expected.of(10) == pytest.approx((5 * 20 + 60) / 6)
    assert expected.at(10, 0.9) == 60


@given(LENGTHS, LENGTHS, st.integers(0, 45), st.integers(1, 45))
def test_more_stopped_responses_never_lower_the_expectation(ended, cut, generated, most):
    known, more = ExpectedLengths(Survival(ended), most), ExpectedLengths(Survival(ended, cut), most)
    assert more.of(generated) >= known.of(generated) - 1e-9
    if max(ended, default=0) > generated:
        assert more.at(generated, 0.5) >= known.at(generated, 0.5)
    else:  # nothing so long was seen: those that were stopped are all that is known of it
        assert more.at(generated, 0.5) <= known.at(generated, 0.5) == most


@given(LENGTHS, st.integers(0, 45), st.integers(1, 45), st.integers(1, 60))
def test_shares_of_the_longer_ones_come_after_each_other(lengths, generated, most, count):
    """As many shares as there are longer lengths give each of them once; more shares never go back."""
    expected = ExpectedLengths(Survival(lengths), most)
    longer = sorted(length for length in lengths if length > generated)
    shares = [(place + 0.5) / len(longer) for place in range(len(longer))]
    assert [expected.at(generated, share) for share in shares] == [min(length, most) for length in longer]
    drawn = [expected.at(generated, place / count) for place in range(count)]
    assert drawn == sorted(drawn)
    assert set(drawn) <= ({min(length, most) for length in longer} or {most})


@given(RESPONSES, LENGTHS, st.floats(0, 45))
def test_the_peak_is_the_most_that_is_held_at_any_moment(unfinished, lengths, moment):
    left = [max(0.0, plainly(r.generated, lengths, 40) - r.generated) for r in unfinished]

    def held(steps: float) -> float:
        alive = [r for r, its in zip(unfinished, left, strict=True) if its >= steps]
        return sum(r.prompt_tokens + r.generated + steps for r in alive)

    peak = peak_kv_tokens(unfinished, ExpectedLengths(Survival(lengths), 40))
    assert peak == pytest.approx(max(map(held, left), default=0.0))
    assert held(moment) <= peak + 1e-9


@given(RESPONSES, LENGTHS, st.builds(Unfinished, st.integers(0, 20), st.integers(0, 30)))
def test_one_response_more_never_needs_less(unfinished, lengths, further):
    expected = ExpectedLengths(Survival(lengths), 40)
    fewer = peak_kv_tokens(unfinished, expected)
    assert peak_kv_tokens([*unfinished, further], expected) >= fewer
    assert fewer >= sum(r.prompt_tokens + r.generated for r in unfinished)


@given(
    st.lists(st.tuples(st.integers(0, 120), st.lists(RESPONSES, max_size=5), st.floats(-1, 1)), max_size=12),
    st.integers(1, 120),
    LENGTHS,
    st.integers(0, 400),
)
def test_a_round_loans_once_and_at_most_half(looks, total, lengths, kv):
    lending, loans, last, expected = LoanPolicy(), 0, None, ExpectedLengths(Survival(lengths), 40)
    for done, fleet, gain in looks:
        done = min(done, total)
        fleet = [LoanableMachine(f"m{i}", kv, tuple(responses)) for i, responses in enumerate(fleet)]
        decision = begun(lending, done, total, fleet, (), expected, lambda names, gain=gain: gain)
        if decision.outcome is LoanOutcome.OUTSIDE_WINDOW:
            continue
        assert 0.2 * total <= done <= 0.5 * total
        assert last is None or done - last >= 0.05 * total
        last = done
        if decision.outcome is LoanOutcome.LOANED:
            loans += 1
            assert gain > 0
            assert len(decision.machines) == len(fleet) // 2 >= 1
            assert set(decision.machines) <= {machine.name for machine in fleet}
            everything = [response for machine in fleet for response in machine.unfinished]
            assert peak_kv_tokens(everything, expected) <= kv * (len(fleet) - len(decision.machines))
    assert loans <= 1
