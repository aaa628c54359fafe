"""Mutants of rljob_runtime.scheduling.lending."""

from hack.mutants import Mutant

LOANED_WORKER = "tests/unit/coordinator/stream_training/test_loaned_worker.py"
GAIN = "tests/unit/scheduling/lending/test_gain.py"

MUTANTS = (
    Mutant(
        name="a loan takes all machines for those of most machines' size",
        target="rljob_runtime.scheduling.lending.gain:RoundSnapshot.speed_of",
        before="self.speeds.get(machine, self.speed)",
        after="self.speed",
        tests=(
            f"{GAIN}::test_each_machine_generates_at_the_speed_of_its_own_size",
            f"{GAIN}::test_a_loan_is_judged_by_the_speed_of_the_machines_that_stay",
        ),
    ),
    Mutant(
        name="a call takes all there is",
        target="rljob_runtime.scheduling.lending.contributions:groups_for_call",
        before="max(1, sum(total <= limit for total in sums))",
        after="len(sums)",
        tests=(
            "tests/unit/coordinator/stream_training/test_stream.py::test_calls_are_bounded_and_one_at_a_time",
            f"{LOANED_WORKER}::test_a_loaned_machine_gets_no_more_than_a_call_should_take",
        ),
    ),
    Mutant(
        name="sums that are not brought yet cost nothing",
        target="rljob_runtime.scheduling.lending.gain:LoanMeasurements.contribution",
        before="None if version is None else version * SUM_WIDTH",
        after="0.0",
        tests=(f"{GAIN}::test_without_measurements_nothing_is_predicted",),
    ),
    Mutant(
        name="a first round believes that its longest response is none of the longest",
        target="rljob_runtime.scheduling.lending.gain:predicted_gain",
        before="not measured.lengths and not snapshot.ends_early",
        after="False",
        tests=(f"{GAIN}::test_without_measurements_nothing_is_predicted",),
    ),
    Mutant(
        name="a sum is as wide as a weight",
        target="rljob_runtime.scheduling.lending.gain:SUM_WIDTH",
        before="2",
        after="1",
        tests=(f"{GAIN}::test_a_broadcast_stands_for_a_handover_until_one_was_measured",),
    ),
    Mutant(
        name="beside loaned machines the trainer is believed as fast as alone",
        target="rljob_runtime.scheduling.lending.gain:predicted_gain",
        before="max(beside, 1e-12)",
        after="max(trainer, 1e-12)",
        tests=(f"{GAIN}::test_trainer_speed_during_loans_is_no_measure_of_it_alone",),
    ),
    Mutant(
        name="rates of other machines are believed",
        target="rljob_runtime.scheduling.lending.gain:LoanMeasurements.from_json",
        before='told["machines"] == machines',
        after="True",
        tests=(f"{GAIN}::test_rates_go_on_from_what_is_stored",),
    ),
    Mutant(
        name="what still runs is expected to end at the mean",
        target="rljob_runtime.scheduling.lending.gain:_run",
        before="lengths.at(response.generated, response.share)",
        after="round(lengths.of(response.generated))",
        tests=(
            f"{GAIN}::test_the_gain",
            f"{GAIN}::test_the_race_is_that_of_the_plain_formula",
        ),
    ),
    Mutant(
        name="a loan is predicted to train on every group",
        target="rljob_runtime.scheduling.lending.gain:simulate_tail",
        before="len(arrivals) < wanted",
        after="True",
        tests=(
            f"{GAIN}::test_the_gain",
            f"{GAIN}::test_the_race_is_that_of_the_plain_formula",
        ),
    ),
    Mutant(
        name="larger batches than any seen are believed in",
        target="rljob_runtime.scheduling.lending.gain:EngineSpeed.decode",
        before="min(max(batch, self.least), self.most)",
        after="batch",
        tests=(f"{GAIN}::test_outside_observed_batches_the_nearest_speed_counts",),
    ),
    Mutant(
        name="what was computed before counts as speed",
        target="rljob_runtime.scheduling.lending.gain:Rate.record",
        before="units > 0",
        after="seconds",
        tests=(
            f"{GAIN}::test_nothing_done_tells_nothing_of_a_speed",
            f"{LOANED_WORKER}::test_a_repetition_tells_nothing_of_a_workers_speed",
        ),
    ),
    Mutant(
        name="machines are loaned for a hair's breadth",
        target="rljob_runtime.scheduling.lending.gain:predicted_gain",
        before="0.0 if 0 < gain < CLEAR_GAIN * alone else gain",
        after="gain",
        tests=(f"{GAIN}::test_the_gain",),
    ),
    Mutant(
        name="what outlasts all that was seen to end is as long as it may be",
        target="rljob_runtime.scheduling.lending.policy:ExpectedLengths.at",
        before="self.curve.predicted_beyond",
        after="self.curve.observed_beyond",
        tests=(
            "tests/unit/scheduling/lending/test_policy.py::test_what_was_stopped_or_still_runs_is_longer_than_it_is",
        ),
    ),
    Mutant(
        name="a fixed trigger waits for a gain",
        target="rljob_runtime.scheduling.lending.policy:LoanPolicy.decide",
        before="not self._rules.requires_gain",
        after="False",
        tests=("tests/unit/bench/simulated/test_benchmarks.py::test_a_fixed_trigger_loans_whatever_is_predicted",),
    ),
)
