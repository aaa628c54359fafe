"""What a loan is predicted to bring: tables of rounds whose arithmetic can be followed, and properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.lending import Lendable, Unfinished
from rljob_runtime.scheduling.loan_gain import Measured, Outlook, StepTimes, ends, engines, predicted_gain, training_end


def measured(a: float = 0.1, b: float = 0.0, trainer: float = 0.0, lent: float | None = None, handover: float = 0.0):
    """An engine of steps a + b·n, seen with 1 to 64 responses."""
    made = Measured(workers_per_trainer=2.0)
    for running in (1, 8, 64):
        made.steps.note(running, 10 * running, 10 * (a + b * running))
    made.training.note(1, trainer)
    if lent is not None:
        made.lent.note(1, lent)
    made.handover.note(1, handover)
    return made


def outlook(*loads: int, backlog: int = 0, length: int = 50, generated: int = 10) -> Outlook:
    machines = [Lendable(f"m{i}", 10_000, (Unfinished(5, generated),) * load) for i, load in enumerate(loads)]
    return Outlook(machines, (), [length], 100, backlog)


@pytest.mark.parametrize(
    ("a", "b"),
    [(0.1, 0.0), (0.02, 0.003), (0.0, 0.01)],
    ids=["memory-bound", "between", "compute-bound"],
)
def test_the_line_is_found_again(a, b):
    steps = measured(a, b).steps
    for running in (1, 10, 64):
        assert steps.of(running) == pytest.approx(a + b * running, rel=1e-6, abs=1e-9)
    # Nothing larger was seen: two halves, one after the other.
    assert steps.of(128) == pytest.approx(2 * steps.of(64))


def test_one_batch_size_tells_nothing_about_larger_ones():
    steps = StepTimes()
    assert not steps.known
    for _ in range(3):
        steps.note(4, 40, 2.0)
    assert steps.of(4) == pytest.approx(0.2)
    assert steps.of(8) == pytest.approx(0.4)
    assert steps.of(2) == pytest.approx(0.1)
    steps.note(0, 5, 1.0)
    steps.note(5, 0, 1.0)
    assert steps.of(4) == pytest.approx(0.2)


def test_an_engines_responses_end_one_after_the_other():
    held = [Unfinished(5, 10), Unfinished(5, 60)]
    # The first is expected to end at 50 (40 steps), the second at the limit of 100 (40 steps).
    assert ends((held, []), [50], 100, measured(0.1).steps) == [(pytest.approx(4.0), 50), (pytest.approx(4.0), 100)]
    # One that comes from elsewhere is computed anew before anything goes on.
    come = ends(([held[0]], [held[1]]), [50], 100, measured(0.1).steps)
    assert come[0][0] == pytest.approx(4.0 + 65 * 0.1 / 64)


def test_what_is_homeless_goes_to_the_engines_with_the_fewest():
    machines = [Lendable("a", 1, (Unfinished(1),) * 3), Lendable("b", 1, (Unfinished(1),) * 2, engines=2)]
    made = engines(machines, [Unfinished(2)] * 3)
    assert [(len(held), len(come)) for held, come in made] == [(3, 0), (1, 2), (1, 1)]


GAINS = [
    # Training is free: to lend can only cost.
    ("nothing to train", outlook(4, 4), measured(trainer=0.0, lent=0.0), lambda gain: gain <= 0),
    # 1,000 s of training and two equal workers in a memory-bound engine: half of it.
    ("much to train", outlook(4, 4, backlog=10_000), measured(trainer=0.1, lent=0.1), lambda gain: 450 < gain < 550),
    # The same where engines are saturated, and training is short: generation takes twice as long.
    ("busy engines", outlook(64, 64), measured(0.0, 0.1, 0.001, 0.001), lambda gain: gain < -200),
    # Sums take longer to bring than they save.
    (
        "slow network",
        outlook(4, 4, backlog=100),
        measured(trainer=0.1, lent=0.1, handover=60.0),
        lambda gain: -40 < gain < -30,
    ),
    # A worker is believed to take as long as its share of the trainer until it was measured.
    ("unmeasured worker", outlook(0, 0, backlog=3000), measured(trainer=0.1), lambda gain: math.isclose(gain, 100)),
]


@pytest.mark.parametrize(("name", "round_", "run", "right"), GAINS, ids=[case[0] for case in GAINS])
def test_the_gain(name, round_, run, right):
    gain = predicted_gain(round_, ("m1",), run)
    assert right(gain), gain


def test_without_measurements_nothing_is_predicted():
    nothing = Measured()
    assert math.isnan(predicted_gain(outlook(4, 4), ("m1",), nothing))
    nothing.training.note(10, 1.0)
    assert math.isnan(predicted_gain(outlook(4, 4), ("m1",), nothing))
    nothing.steps.note(4, 40, 1.0)
    assert not math.isnan(predicted_gain(outlook(4, 4), ("m1",), nothing))


def test_a_broadcast_stands_for_a_handover_until_one_was_measured():
    run = Measured()
    run.steps.note(1, 10, 1.0)
    run.training.note(100, 10.0)
    before = predicted_gain(outlook(1, 1), ("m1",), run)
    run.broadcast.note(1, 7.0)
    assert before - predicted_gain(outlook(1, 1), ("m1",), run) == pytest.approx(7.0)
    run.handover.note(2, 4.0)
    assert before - predicted_gain(outlook(1, 1), ("m1",), run) == pytest.approx(2.0)


ARRIVALS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=8)


@given(st.integers(0, 100), ARRIVALS, st.floats(0, 2))
def test_training_ends_after_all_there_is_and_sooner_with_more_hands(backlog, arrivals, token):
    end = training_end(backlog, arrivals, token)
    assert end >= token * (backlog + sum(tokens for _, tokens in arrivals)) - 1e-6
    assert end >= max((at + token * tokens for at, tokens in arrivals), default=0.0) - 1e-6
    assert training_end(backlog, arrivals, token / 2) <= end + 1e-9


@given(
    st.lists(st.tuples(st.integers(1, 70), st.floats(0.001, 1)), min_size=1, max_size=6),
    st.floats(0.5, 200),
    st.floats(0.5, 200),
)
def test_a_larger_batch_never_makes_fewer_tokens_a_second_nor_a_shorter_step(samples, one, other):
    steps = StepTimes()
    for running, step in samples:
        steps.note(running, running, step)
    small, large = sorted((one, other))
    assert 0 <= steps.of(small) <= steps.of(large) * (1 + 1e-9)
    assert large * steps.of(small) >= small * steps.of(large) * (1 - 1e-6)
