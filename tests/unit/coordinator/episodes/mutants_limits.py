"""Mutants of how attempts end by a limit: one that a harness states, and the time in which a coordinator was away."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
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
)
