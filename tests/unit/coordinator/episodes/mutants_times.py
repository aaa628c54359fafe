"""Mutants of the times of attempts: of those that another runner goes on with, and of those that never end."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
TIMES = "tests/unit/coordinator/episodes/test_resumed_times.py"
LATE = "tests/unit/coordinator/episodes/test_late_harnesses.py"
PURE = "tests/unit/scheduling/episodes/test_times.py"

MUTANTS = (
    Mutant(
        name="each metric of an environment is a curve, however many there are",
        target="rljob_runtime.coordinator.episodes.metrics:MetricNames.admit",
        before="len(names) < self._share",
        after="True",
        tests=(
            "tests/unit/coordinator/episodes/test_metrics.py::test_a_report_has_the_first_metrics_of_many_environments",
        ),
    ),
    Mutant(
        name="a mean beyond all numbers ends the coordinator",
        target="rljob_runtime.coordinator.episodes.metrics:_mean",
        before="mean if math.isfinite(mean) else None",
        after="mean",
        tests=("tests/unit/coordinator/episodes/test_metrics.py::test_a_mean_beyond_all_numbers_is_left_out",),
    ),
    Mutant(
        name="an episode without a metric counts as one that measured nothing",
        target="rljob_runtime.coordinator.episodes.metrics:environment_metrics",
        before="_mean(each)",
        after="sum(each) / len(trained)",
        tests=(
            "tests/unit/coordinator/episodes/test_metrics.py::test_a_report_has_the_first_metrics_of_many_environments",
        ),
    ),
    Mutant(
        name="seconds of an attempt are counted from where its time limit begins",
        target=f"{EPISODES}.attempt:Attempt.times",
        before="self.began",
        after="self.episode.started",
        tests=(f"{TIMES}::test_seconds_and_moments_are_those_with_a_runner",),
    ),
    Mutant(
        name="a restarted coordinator counts the time without a runner",
        target=f"{EPISODES}.restore:restored",
        before="attempt.count_limit()",
        after="pass",
        tests=(f"{TIMES}::test_the_next_coordinator_knows_pauses_and_deadline",),
    ),
    Mutant(
        name="a harness that ignores its deadline is never ended",
        target=f"{EPISODES}.runner_service:RunnerService._late",
        before="one.episode.deadline + one.episode.rules.overtime < now",
        after="False",
        tests=(f"{LATE}::test_an_attempt_ends_after_its_overtime_though_its_runner_lives",),
    ),
    Mutant(
        name="an attempt ends at its deadline, before its runner can report",
        target=f"{EPISODES}.runner_service:RunnerService._late",
        before="one.episode.deadline + one.episode.rules.overtime < now",
        after="one.episode.deadline < now",
        tests=(f"{LATE}::test_an_attempt_ends_after_its_overtime_though_its_runner_lives",),
    ),
    Mutant(
        name="a harness may go on after its end",
        target=f"{EPISODES}.book:EpisodeBook.find",
        before="attempt is None or attempt.id != episode or attempt.episode.end is not None",
        after="attempt is None or attempt.id != episode",
        tests=(f"{LATE}::test_a_harness_that_asks_after_its_end_is_refused",),
    ),
    Mutant(
        name="the next coordinator does not know when tools ran",
        target=f"{EPISODES}.restore:restored",
        before="attempt.tools = [one.span for one in kept.calls if one.span is not None]",
        after="",
        tests=(f"{TIMES}::test_a_row_of_the_timeline_shows_when_tools_ran",),
    ),
    Mutant(
        name="tools are the time of their harness",
        target=f"{EPISODES}.resumptions:Resumptions.called",
        before="attempt.tools.append(span)",
        after="pass",
        tests=(f"{TIMES}::test_a_row_of_the_timeline_shows_when_tools_ran",),
    ),
    Mutant(
        name="no runner may run calls concurrently",
        target=f"{EPISODES}.runner_service:RunnerService._assignments",
        before="attempt.calls.recovery is Recovery.NEXT_TURN",
        after="False",
        tests=(f"{TIMES}::test_a_row_of_the_timeline_shows_when_tools_ran",),
    ),
)
