"""Mutants of the times of attempts that another runner goes on with."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
TIMES = "tests/unit/coordinator/episodes/test_resumed_times.py"
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
)
