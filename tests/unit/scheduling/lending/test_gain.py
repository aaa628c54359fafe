"""What a loan is predicted to bring: tables of rounds whose arithmetic can be followed, and properties."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.protocols import EngineStats, ReplicaReport
from rljob_runtime.scheduling.lending.gain import (
    EngineSpeed,
    EngineTimeline,
    LoanMeasurements,
    OpenGroup,
    Rate,
    RoundSnapshot,
    arrivals,
    loads,
    predicted_gain,
    simulate_tail,
    speeds_of,
    training_end,
    with_drawn_lengths,
)
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival


def speed(a: float = 0.1, b: float = 0.0, c: float = 0.0, prompt: float = 0.0, least=1, most=64) -> EngineSpeed:
    """Steps of a + b·n + c·context seconds."""
    return EngineSpeed(LatencyModel(((1.0, a + b), (1024.0, a + 1024 * b)), c, 0.0, prompt, 0.0), least, most)


def measured(trainer: float = 0.0, loaned: float | None = None, handover: float = 0.0) -> LoanMeasurements:
    made = LoanMeasurements(workers_per_trainer=2.0)
    made.training.record(1, trainer)
    if loaned is not None:
        made.loaned.record(1, loaned)
    made.transfer.record(1, handover)
    made.lengths = [LengthObservation(50)]
    return made


def snapshot(*by_machine: int, backlog: int = 0, length: int = 50, generated: int = 10, **changes) -> RoundSnapshot:
    """Groups of one response each, so many on each machine."""
    machines, group = [], 0
    for number, load in enumerate(by_machine):
        unfinished = tuple(Unfinished(5, generated, group + place) for place in range(load))
        machines.append(LoanableMachine(f"m{number}", 10_000, unfinished))
        group += load
    groups = [OpenGroup(1)] * group
    made = RoundSnapshot(machines, (), ExpectedLengths(Survival([length]), 100), groups, group, backlog, speed())
    return replace(made, **changes)


# --- engines ---


def test_outside_observed_batches_the_nearest_speed_counts():
    known = speed(0.1, 0.01, least=4, most=16)
    assert known.decode(8, 0, 10) == pytest.approx(10 * 0.18)
    assert known.decode(2, 0, 1) == pytest.approx(0.14 / 2)
    assert known.decode(32, 0, 1) == pytest.approx(0.26 * 2)


def test_a_context_computed_again_takes_its_tokens_and_their_squares():
    known = EngineSpeed(LatencyModel(((1.0, 0.1),), 0.0, 0.5, 0.003, 1e-6), 1, 16)
    assert known.prefill([100, 300]) == pytest.approx(0.5 + 400 * 0.003 + (100**2 + 300**2) * 1e-6)
    assert known.prefill([]) == 0


@given(st.integers(1, 200), st.integers(1, 200), st.floats(0, 1), st.floats(0, 0.1), st.integers(1, 64))
def test_a_larger_batch_is_never_slower_nor_its_step_shorter(one, other, a, b, least):
    known = speed(a + 1e-3, b, least=least)
    small, large = sorted((one, other))
    assert known.decode(small, 0, 1) <= known.decode(large, 0, 1) * (1 + 1e-9)
    assert large * known.decode(small, 0, 1) >= small * known.decode(large, 0, 1) * (1 - 1e-9)


def watch_of(*batches: int, step: float = 0.1, tensor_parallel: int = 1) -> EngineObserver:
    """A watch that observed ten steps of each of these batches."""
    watch, steps = EngineObserver(lambda replica: tensor_parallel), NO_STEPS
    for made in (NO_STEPS, *(StepTotals(10, 10 * batch, seconds=10 * step) for batch in batches)):
        steps += made
        stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, kv_tokens=900, decode=steps)
        watch.record("m0/replica-0", ReplicaReport("boot", 0, (), 1, stats))
    return watch


def test_the_speed_of_engines_is_that_of_the_last_rounds_in_this_layout():
    assert EngineObserver().engine_speed(1) is None
    first = watch_of(4, 8)
    assert first.kv_tokens("m0/replica-0") == 900
    assert first.kv_tokens("m1/replica-0") == 0
    seen = first.engine_speed(1)
    assert (seen.least, seen.most) == (4, 8)
    assert seen.decode(8, 0, 1) == pytest.approx(0.1, rel=0.01)
    second = EngineObserver()
    second.continue_from(first)
    assert second.engine_speed(1) == seen
    assert second.engine_speed(2) is None


def test_an_engines_responses_end_one_after_the_other():
    # The first is expected to end at 50 (40 steps), the second at the limit of 100 (40 steps).
    lengths, groups = ExpectedLengths(Survival([50]), 100), [OpenGroup(1)] * 2
    held = [Unfinished(5, 10, 0), Unfinished(5, 60, 1)]
    engine = EngineTimeline((held, []), lengths, speed(0.1))
    assert simulate_tail([engine], groups, 2) == [(pytest.approx(4.0), 50), (pytest.approx(4.0), 100)]
    # One that comes from elsewhere is computed again before anything goes on.
    engine = EngineTimeline(([held[0]], [held[1]]), lengths, speed(0.1, prompt=0.01))
    assert simulate_tail([engine], groups, 2)[0][0] == pytest.approx(4.0 + 65 * 0.01)


def test_a_step_takes_longer_as_the_context_grows():
    engine = EngineTimeline(([Unfinished(5, 10)], []), ExpectedLengths(Survival([50]), 100), speed(0.1, c=0.001))
    # 40 steps over 15, 16, … 54 tokens.
    assert simulate_tail([engine], [OpenGroup(1)], 1)[0][0] == pytest.approx(4.0 + 0.001 * (40 * 15 + 40 * 40 / 2))


def test_what_is_homeless_goes_to_the_engines_with_the_fewest():
    machines = [LoanableMachine("a", 1, (Unfinished(1),) * 3), LoanableMachine("b", 1, (Unfinished(1),) * 2, engines=2)]
    made = loads(machines, [Unfinished(2)] * 3)
    assert [(len(held), len(come)) for held, come in made] == [(3, 0), (1, 2), (1, 1)]


# --- the race ---


def test_only_what_can_still_be_kept_is_trained_on():
    lengths = ExpectedLengths(Survival([10, 20, 30]), 40)
    # Of three groups two are kept. The first needs one of its two, the second is awaited for its reward only.
    groups = [OpenGroup(1, 100), OpenGroup(0, 7), OpenGroup(2, 50)]
    runners = [Unfinished(1, 25, 0), Unfinished(1, 0, 0), Unfinished(1, 15, 2), Unfinished(1, 0, 2)]
    engine = EngineTimeline((runners, []), lengths, speed(1.0))
    # Group 0: the response of 25 tokens ends at 30, five steps from now; the other one, which ends at 20, is too late.
    assert simulate_tail([engine], groups, 2) == [(0.0, 7), (pytest.approx(5.0), 130)]
    # All three: the last group has its two after 20 steps, at 30 and at 20.
    engine = EngineTimeline((runners, []), lengths, speed(1.0))
    assert simulate_tail([engine], groups, 3)[2] == (pytest.approx(20.0), 50 + 30 + 20)


def test_a_response_that_lost_its_race_slows_no_other_down():
    lengths, groups = ExpectedLengths(Survival([10, 20]), 20), [OpenGroup(1), OpenGroup(1)]
    # Group 0 has its place after 5 steps of 3 s, one of its runners is stopped, and group 1 makes 15 more of 1 s.
    runners = [Unfinished(1, 15, 0), Unfinished(1, 12, 0), Unfinished(1, 0, 1)]
    found = simulate_tail([EngineTimeline((runners, []), lengths, speed(0.0 + 1e-9, 1.0))], groups, 2)
    assert found == [(pytest.approx(15.0), 20), (pytest.approx(15.0 + 15.0), 20)]


RUNNERS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 3), st.floats(0, 0.99)), max_size=10)


def plainly(engines, groups, wanted, lengths, known):
    """As `simulate_tail`, every engine and every runner looked at at every event."""
    missing, tokens = [g.missing for g in groups], [g.tokens for g in groups]
    arrivals = [(0.0, g.tokens) for g in groups if not g.missing][:wanted]
    live = [[[max(0.0, lengths.at(r.generated, r.share) - r.generated), r] for r in its] for its in engines]
    now = 0.0

    def step(its):
        return known.decode(len(its), 0, 1)

    while len(arrivals) < wanted and any(live):
        span, number, place = min(
            (left * step(its), number, place) for number, its in enumerate(live) for place, (left, _) in enumerate(its)
        )
        now += span
        for its in live:
            pace = step(its) if its else 1.0
            for runner in its:
                runner[0] = max(0.0, runner[0] - span / pace)
        _, ended = live[number].pop(place)
        missing[ended.group] -= 1
        tokens[ended.group] += lengths.at(ended.generated, ended.share)
        if missing[ended.group] == 0:
            arrivals.append((now, tokens[ended.group]))
            for its in live:
                its[:] = [runner for runner in its if runner[1].group != ended.group]
    return arrivals


@given(RUNNERS, st.lists(st.integers(1, 40), max_size=5), st.floats(0.01, 1), st.floats(0, 0.5), st.integers(1, 4))
def test_the_race_is_that_of_the_plain_formula(runners, lengths, a, b, wanted):
    expected, known, per_engine = ExpectedLengths(Survival(lengths), 40), speed(a, b), [[], [], []]
    for engine, generated, group, share in runners:
        per_engine[engine].append(Unfinished(0, generated, group, share))
    counts = [sum(group == number for _, _, group, _ in runners) for number in range(4)]
    groups = [OpenGroup(max(1, (count + 1) // 2), 5) for count in counts]
    found = simulate_tail([EngineTimeline((its, []), expected, known) for its in per_engine], groups, wanted)
    wanted_ = plainly(per_engine, groups, wanted, expected, known)
    # Groups that end at one moment may stand in any order, and one of them may be the last.
    assert [time for time, _ in found] == pytest.approx([time for time, _ in wanted_], abs=1e-6)


# --- the gain ---

GAINS = [
    # Training is free: a loan can only cost.
    ("nothing to train", snapshot(4, 4), measured(trainer=0.0, loaned=0.0), lambda gain: gain <= 0),
    # 1,000 s of training and two equal workers in a memory-bound engine: half of it.
    ("much to train", snapshot(4, 4, backlog=10_000), measured(trainer=0.1, loaned=0.1), lambda gain: 450 < gain < 550),
    # The same where engines are saturated, and training is short: generation takes twice as long.
    (
        "busy engines",
        snapshot(64, 64, speed=speed(0.0 + 1e-9, 0.1, most=64)),
        measured(0.001, 0.001),
        lambda gain: gain < -200,
    ),
    # Sums take longer to bring than they save.
    (
        "slow network",
        snapshot(4, 4, backlog=100),
        measured(trainer=0.1, loaned=0.1, handover=60.0),
        lambda gain: -40 < gain < -30,
    ),
    # A worker is believed to take as long as its share of the trainer until it was measured.
    ("unmeasured worker", snapshot(0, 0, backlog=3000), measured(trainer=0.1), lambda gain: math.isclose(gain, 100)),
    # One hundredth of the time is no gain that can be counted on.
    ("a hair's breadth", snapshot(0, 0, backlog=3000), measured(trainer=0.1, loaned=10.0), lambda gain: gain == 0),
    # One response in ten ends after 103 s, the 30 s of backlog are done long before, and 2 s are nothing to count on.
    # If all ended at their mean of 140, after 13 s, half of the backlog would be gained.
    (
        "a long tail",
        snapshot(10, 10, backlog=15_000, lengths=ExpectedLengths(Survival([40] * 18 + [1040] * 2), 2000)),
        measured(trainer=0.002, loaned=0.002),
        lambda gain: gain == 0,
    ),
    # What can be kept is in already: what still runs is aborted soon, and is no work.
    (
        "the race is won",
        snapshot(64, 64, wanted=0, backlog=3000),
        measured(trainer=0.1),
        lambda gain: math.isclose(gain, 100),
    ),
]


@pytest.mark.parametrize(("name", "round_", "run", "right"), GAINS, ids=[case[0] for case in GAINS])
def test_the_gain(name, round_, run, right):
    gain = predicted_gain(round_, ("m1",), run)
    assert right(gain), gain


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 5), st.integers(0, 3))
def test_a_draw_has_its_share_of_long_responses_and_nothing_else_changes(by_machine, waiting, seed):
    before = replace(snapshot(*by_machine), waiting=(Unfinished(7, 3),) * waiting)
    after = with_drawn_lengths(before, Random(seed))
    assert after == with_drawn_lengths(before, Random(seed))
    shares = [one.share for machine in after.machines for one in machine.unfinished]
    shares += [one.share for one in after.waiting]
    count = before.unfinished
    assert sorted(shares) == pytest.approx([(place + 0.5) / count for place in range(count)])
    plain = [
        replace(machine, unfinished=tuple(replace(one, share=0.5) for one in machine.unfinished))
        for machine in after.machines
    ]
    assert plain == before.machines
    assert tuple(replace(one, share=0.5) for one in after.waiting) == before.waiting


def test_both_programs_have_the_same_lengths():
    """Training is free, and steps take as long whatever runs: a loan changes nothing at all."""
    lengths = ExpectedLengths(Survival(range(11, 400)), 400)
    round_ = snapshot(9, 3, 4, lengths=lengths, speed=speed(prompt=1e-12))
    assert predicted_gain(round_, ("m1", "m2"), measured(0.0, 0.0)) == pytest.approx(0.0, abs=1e-6)


def test_without_measurements_nothing_is_predicted():
    nothing = LoanMeasurements()
    assert math.isnan(predicted_gain(snapshot(4, 4), ("m1",), nothing))
    nothing.training.record(10, 1.0)
    assert math.isnan(predicted_gain(snapshot(4, 4, speed=None), ("m1",), nothing))
    assert math.isnan(predicted_gain(snapshot(4, 4, wanted=6), ("m1",), nothing)), "what do sums take on their way?"
    nothing.broadcast.record(1, 0.1)
    assert math.isnan(predicted_gain(snapshot(4, 4), ("m1",), nothing)), "the longest, which all wait for, is unknown"
    assert not math.isnan(predicted_gain(snapshot(4, 4, wanted=6), ("m1",), nothing))
    spare = [OpenGroup(1)] * 7 + [OpenGroup(0)]
    assert not math.isnan(predicted_gain(snapshot(4, 4, groups=spare), ("m1",), nothing))
    nothing.lengths = [LengthObservation(50)]
    assert not math.isnan(predicted_gain(snapshot(4, 4), ("m1",), nothing))


def test_trainer_speed_during_loans_is_no_measure_of_it_alone():
    """Where they want the same processors, its seconds alone would look longer with each loan, and loans better."""
    round_ = snapshot(1, 1, backlog=100)
    apart, sharing = measured(1.0, 1.0), measured(1.0, 4.0)
    sharing.with_loan.record(1, 4.0)
    assert predicted_gain(round_, ("m1",), apart) > 0
    assert predicted_gain(round_, ("m1",), sharing) < 0


def test_rates_go_on_from_what_is_stored():
    run = LoanMeasurements(2.0)
    for place, name in enumerate(LoanMeasurements.RATES[:-1], 1):
        getattr(run, name).record(3 * place, 1.0)
    read = LoanMeasurements.from_json(run.to_json("these"), 2.0, "these")
    assert read.to_json() == run.to_json()
    assert read.broadcast.seconds is None
    for one in (run, read):
        one.training.record(1, 9.0)
    assert read.training.seconds == run.training.seconds == 2.5
    other = LoanMeasurements.from_json(run.to_json("these"), 2.0, "others")
    assert other.to_json() == LoanMeasurements().to_json()


def test_a_broadcast_stands_for_a_handover_until_one_was_measured():
    """Sums are twice as wide as weights."""
    run = LoanMeasurements()
    run.lengths = [LengthObservation(50)]
    run.training.record(100, 10.0)
    run.broadcast.record(1, 0.0)
    before = predicted_gain(snapshot(1, 1), ("m1",), run)
    run.broadcast.record(1, 7.0)
    assert before - predicted_gain(snapshot(1, 1), ("m1",), run) == pytest.approx(7.0)
    run.transfer.record(2, 4.0)
    assert before - predicted_gain(snapshot(1, 1), ("m1",), run) == pytest.approx(2.0)


def test_nothing_done_tells_nothing_of_a_speed():
    rate = Rate()
    rate.record(0, 5.0)
    assert rate.seconds is None
    rate.record(2, 1.0)
    rate.record(0, 5.0)
    assert rate.seconds == 0.5


ARRIVALS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=8)


@given(st.integers(0, 100), ARRIVALS, st.floats(0, 2))
def test_training_ends_after_all_there_is_and_sooner_with_more_hands(backlog, arrivals, token):
    end = training_end(backlog, arrivals, token)
    assert end >= token * (backlog + sum(tokens for _, tokens in arrivals)) - 1e-6
    assert end >= max((at + token * tokens for at, tokens in arrivals), default=0.0) - 1e-6
    assert training_end(backlog, arrivals, token / 2) <= end + 1e-9


# --- machines of two sizes ---


def switched(fast: EngineSpeed | None) -> RoundSnapshot:
    """Two machines with four responses each, of which the second one has switched to a size with this speed."""
    return snapshot(4, 4, speeds={"m1": fast})


def test_each_machine_generates_at_the_speed_of_its_own_size():
    round_ = with_drawn_lengths(switched(speed(0.01)), Random(0))
    speeds = speeds_of(round_)
    assert speeds == {"m0": speed(0.1), "m1": speed(0.01)}
    assert [at for at, _ in arrivals(round_, speeds)] == pytest.approx([0.4] * 4 + [4.0] * 4)


def test_a_loan_is_judged_by_the_speed_of_the_machines_that_stay():
    """The trainer takes no time here: only the end of generation counts."""
    round_ = switched(speed(0.01))
    assert predicted_gain(round_, ["m0"], measured(0.0)) > 3.0, "the slow machine's responses end on the fast one"
    assert predicted_gain(round_, ["m1"], measured(0.0)) < 0.0
    assert predicted_gain(snapshot(4, 4), ["m0"], measured(0.0)) < 0.0


def test_without_the_speed_of_one_size_nothing_is_predicted():
    assert speeds_of(switched(None)) is None
    assert math.isnan(predicted_gain(switched(None), ["m0"], measured(0.0)))
