"""Mutants of how attempts end: by a limit, after an absence of the coordinator, with which answer and which trace."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
BOOK = "tests/unit/coordinator/episodes/test_book.py"
OVERTIME = "tests/unit/coordinator/episodes/test_overtime.py"
OUTAGES = "tests/unit/coordinator/episodes/test_outages.py"
SCORER = "tests/unit/coordinator/episodes/test_scorer.py"
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
    Mutant(
        name="every reward has the time of a short one",
        target=f"{EPISODES}.runner_service:RunnerService._late",
        before="one.episode.rules.overtime",
        after="30.0",
        tests=(f"{OVERTIME}::test_a_reward_may_take_its_time_after_the_deadline",),
    ),
    Mutant(
        name="what a program states as its answer is dropped",
        target=f"{EPISODES}.scorer:EpisodeScorer.score",
        before="answer is not None",
        after="False",
        tests=(f"{SCORER}::test_the_answer_that_a_program_states_is_scored",),
    ),
    Mutant(
        name="the turn that was opened last is the answer",
        target=f"{EPISODES}.scorer:EpisodeScorer.score",
        before="last_answer(attempt.episode.nodes)",
        after="attempt.episode.sampled[-1]",
        tests=(f"{SCORER}::test_a_sub_agent_that_ends_last_gives_no_answer",),
    ),
    Mutant(
        name="a restarted coordinator forgets a stated answer",
        target=f"{EPISODES}.restore:restored",
        before="answer=kept.answer",
        after="answer=None",
        tests=(f"{SCORER}::test_a_restarted_coordinator_scores_the_stated_answer",),
    ),
    Mutant(
        name="a trace that differs from the stored turns is not counted",
        target=f"{EPISODES}.runner_service:RunnerService.done",
        before="self._totals.differing_traces += 1",
        after="pass",
        tests=(f"{BOOK}::test_a_trace_of_the_harness_is_compared_and_never_trained_on",),
    ),
)
