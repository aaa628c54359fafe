"""Mutants of rljob_runtime.coordinator.reporting."""

from hack.mutants import Mutant

EVALUATIONS = "tests/unit/coordinator/reporting/test_evaluations.py"

POLICY_FAILURES = "tests/unit/coordinator/on_policy/test_policy_failures.py"

TRAINING_METRICS = "tests/unit/coordinator/reporting/test_training_metrics.py"

LABELLED_GAUGES = "tests/unit/coordinator/reporting/test_labelled_gauges.py"

MUTANTS = (
    Mutant(
        name="a foreseen wait for a profile shortens later ones",
        target="rljob_runtime.coordinator.reporting.layout_stats:VisitTotals.record_delay",
        before="foreseen and seconds > 0",
        after="0",
        tests=(
            "tests/unit/coordinator/on_policy/test_idle_profiler.py::test_a_job_of_short_updates_measures_each_size_once",
        ),
    ),
    Mutant(
        name="labels that a round lacks keep an older value",
        target="rljob_runtime.coordinator.reporting.labelled_gauge:LabelledGauge.show",
        before="self._shown - values.keys()",
        after="set()",
        tests=(LABELLED_GAUGES,),
    ),
    Mutant(
        name="records that wait at the end are no warning",
        target="rljob_runtime.coordinator.reporting.round_log:RoundJournal.flush",
        before="self.waiting",
        after="0",
        tests=(
            "tests/unit/coordinator/reporting/test_round_log.py::test_what_is_not_written_at_the_jobs_end_is_counted",
        ),
    ),
    Mutant(
        name="an error of a policy ends the coordinator",
        target="rljob_runtime.coordinator.reporting.policy_failures:attempt",
        before="return error",
        after="raise",
        tests=(
            f"{POLICY_FAILURES}::test_a_failing_switch_policy_is_given_up_and_the_job_completes",
            f"{POLICY_FAILURES}::test_a_round_that_cannot_be_described_has_no_look",
            f"{POLICY_FAILURES}::test_a_planner_that_fails_leaves_the_reference_plan",
        ),
    ),
    Mutant(
        name="groups of two different rewards count as equal",
        target="rljob_runtime.coordinator.reporting.group_metrics:with_group_metrics",
        before="len({scored.reward for scored in group.responses}) == 1",
        after="len({scored.reward for scored in group.responses}) <= 2",
        tests=("tests/unit/coordinator/reporting/test_group_metrics.py",),
    ),
    Mutant(
        name="a metric of NaN ends the coordinator",
        target="rljob_runtime.coordinator.reporting.training_metrics:_shown",
        before="shown is not None and math.isfinite(shown)",
        after="shown is not None",
        tests=(f"{TRAINING_METRICS}::test_a_number_that_no_status_can_hold_is_absent",),
    ),
    Mutant(
        name="a metric that a loss does not report is 0 in the status",
        target="rljob_runtime.coordinator.reporting.training_metrics:training_metrics",
        before='trained.metrics.get("clip_fraction_low")',
        after='trained.metrics.get("clip_fraction_low", 0.0)',
        tests=(f"{TRAINING_METRICS}::test_what_a_job_does_not_compute_is_absent",),
    ),
    Mutant(
        name="a busy replica begins again with each response",
        target="rljob_runtime.coordinator.reporting.timeline:Timeline.busy",
        before="held and row not in self._open",
        after="held",
        tests=(
            "tests/unit/coordinator/reporting/test_timeline.py::"
            "test_intervals_are_recorded_with_the_boundary_that_ends_them",
        ),
    ),
    Mutant(
        name="a warning that is over stays in the metrics",
        target="rljob_runtime.coordinator.reporting.metrics:CoordinatorMetrics.status",
        before="self._warnings.clear()",
        after="",
        tests=("tests/unit/coordinator/reporting/test_status_metrics.py",),
    ),
    Mutant(
        name="an observer is called for what it has no method for",
        target="rljob_runtime.coordinator.reporting.observer_feed:ObserverWriter.samples",
        before="isinstance(self._observer, ObservesSamples)",
        after="True",
        tests=("tests/unit/observers/test_observers.py::test_an_observer_without_a_method_is_not_called_for_it",),
    ),
    Mutant(
        name="samples for a slow observer wait without a bound",
        target="rljob_runtime.coordinator.reporting.round_log:RoundJournal.put",
        before="turn.acquire(blocking=False)",
        after="True",
        tests=(
            "tests/unit/observers/test_observers.py::test_a_slow_observer_holds_few_samples_and_leaves_room_for_rounds",
        ),
    ),
    Mutant(
        name="a timeline grows without end",
        target="rljob_runtime.coordinator.reporting.timeline:TimelineLog._append",
        before="self._path.exists() and self._path.stat().st_size + len(line) > MOST_BYTES",
        after="False",
        tests=("tests/unit/coordinator/reporting/test_timeline.py::test_the_file_keeps_the_newest_rounds",),
    ),
    Mutant(
        name="intervals of a round that could not be written are gone",
        target="rljob_runtime.coordinator.reporting.timeline:Timeline.written",
        before="write(self._closed[0])",
        after="write(self._closed.popleft()) or self._closed.appendleft(None)",
        tests=(
            "tests/unit/coordinator/reporting/test_timeline.py::"
            "test_a_full_disk_costs_no_round_and_its_intervals_come_later",
        ),
    ),
    Mutant(
        name="a log that could not be written once is written no more",
        target="rljob_runtime.coordinator.reporting.round_log:RoundJournal._write",
        before="target.writer is None",
        after="target.writer is None and not target.lost",
        tests=(
            (
                "tests/unit/coordinator/reporting/test_round_log.py::test_a_full_disk_costs_lines_and_they_come_"
                "back_with_room"
            ),
        ),
    ),
    Mutant(
        name="an equal evaluation wakes the operator",
        target="rljob_runtime.coordinator.reporting.evaluations:EvaluationBoard._show",
        before="reports != self._reporter.draft.evaluations",
        after="True",
        tests=(f"{EVALUATIONS}::test_the_board_follows_results_and_rewinds",),
    ),
    Mutant(
        name="the best weights are those with the best average, whatever the spec says",
        target="rljob_runtime.coordinator.reporting.evaluations:_report",
        before="metrics.get(last.name, EvaluationMetric.AVERAGE)",
        after="EvaluationMetric.AVERAGE",
        tests=(f"{EVALUATIONS}::test_the_status_has_the_first_the_last_and_the_best_result",),
    ),
    Mutant(
        name="evaluations do not reach observers",
        target="rljob_runtime.coordinator.reporting.observer_feed:ObserverWriter.evaluated",
        before="self._observer.round(result.round, evaluation_metrics(result))",
        after="pass",
        tests=(f"{EVALUATIONS}::test_observers_receive_evaluations_with_the_round_of_the_weights",),
    ),
    Mutant(
        name="what has not ended is no work",
        target="rljob_runtime.coordinator.reporting.timeline:Timeline.recorded",
        before="self._open.items()",
        after="()",
        tests=(
            "tests/unit/coordinator/reporting/test_idle_metrics.py::test_a_round_whose_intervals_were_lost_has_no_shares",
        ),
    ),
    Mutant(
        name="switches that failed are counted as made",
        target="rljob_runtime.coordinator.reporting.metrics:_SwitchMetrics.count",
        before='self._switches.labels("failed").inc(report.failed or 0)',
        after='self._switches.labels("reached").inc(report.failed or 0)',
        tests=("tests/unit/coordinator/reporting/test_switch_metrics.py::test_switches_are_counted_over_rounds",),
    ),
)
