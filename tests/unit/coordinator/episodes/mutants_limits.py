"""Mutants of how attempts end by a limit: one that a harness states, and the time in which a coordinator was away."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
OUTAGES = "tests/unit/coordinator/episodes/test_outages.py"
STATED = "tests/unit/coordinator/episodes/test_stated_limits.py"

MUTANTS = (
    Mutant(
        name="a harness that a limit ended has completed",
        target=f"{EPISODES}.resumptions:Resumptions.complete",
        before="limit is not None",
        after="False",
        tests=(f"{STATED}::test_a_harness_that_a_limit_ended_is_truncated_by_it",),
    ),
    Mutant(
        name="what an agent said at its deadline is dropped",
        target=f"{EPISODES}.resumptions:Resumptions.complete",
        before="episode.complete(report.detail)",
        after="episode.complete()",
        tests=(f"{STATED}::test_a_harness_that_a_limit_ended_is_truncated_by_it",),
    ),
    Mutant(
        name="a restarted coordinator trains on a truncated episode as a complete one",
        target=f"{EPISODES}.restore:restored",
        before="kept.end.limit if kept.end is not None else None",
        after="None",
        tests=(f"{STATED}::test_the_next_coordinator_trains_on_it_as_one_that_was_cut",),
    ),
    Mutant(
        name="a restarted coordinator's limit comes before the harness's",
        target=f"{EPISODES}.attempt:Attempt.count_limit",
        before="self.outage or 0.0",
        after="0.0",
        tests=(f"{OUTAGES}::test_the_harnesss_own_deadline_comes_before_the_coordinators",),
    ),
    Mutant(
        name="an outage of the coordinator is the policy's time",
        target=f"{EPISODES}.resumptions:Resumptions.complete",
        before="attempt.outage is not None",
        after="False",
        tests=(f"{OUTAGES}::test_a_time_out_after_an_outage_is_a_failure_of_ours",),
    ),
    Mutant(
        name="a program that runs again has an outage behind it",
        target=f"{EPISODES}.attempt:Attempt.take",
        before="self.outage = None",
        after="pass",
        tests=(f"{OUTAGES}::test_the_next_runner_has_the_time_of_the_outage_or_all_of_it",),
    ),
    Mutant(
        name="a harness is believed only at the deadline that an outage moved",
        target=f"{EPISODES}.resumptions:Resumptions.complete",
        before="attempt.harness_start",
        after="episode.started",
        tests=(f"{OUTAGES}::test_a_time_out_after_an_outage_is_a_failure_of_ours",),
    ),
)
