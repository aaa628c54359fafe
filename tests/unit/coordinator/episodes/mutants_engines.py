"""Mutants of attempts that no engine generates, of what foreign runners may have stored and read, and of their load."""

from __future__ import annotations

from hack.mutants import Mutant

EPISODES = "rljob_runtime.coordinator.episodes"
WITHOUT_ENGINE = "tests/unit/coordinator/episodes/test_without_engine.py"
METRICS = "tests/unit/coordinator/episodes/test_metrics.py"
RESUMPTIONS = "tests/unit/coordinator/episodes/test_resumptions.py"

MUTANTS = (
    Mutant(
        name="an attempt that the gateway did not serve failed by its environment",
        target=f"{EPISODES}.runner_service:CAUSES",
        before="AbortCause.GATEWAY",
        after="AbortCause.ENVIRONMENT",
        tests=(
            "tests/unit/coordinator/episodes/test_book.py::test_an_attempt_that_the_gateway_did_not_serve_is_no_reward",
        ),
    ),
    Mutant(
        name="a released attempt is given to the next runner without an engine",
        target=f"{EPISODES}.runner_service:RunnerService._may_be_served",
        before="attempt is None or attempt.holder is not None",
        after="True",
        tests=(f"{WITHOUT_ENGINE}::test_a_released_attempt_waits_for_an_engine_before_a_runner",),
    ),
    Mutant(
        name="an attempt that races again loses its runner",
        target=f"{EPISODES}.book:EpisodeBook.release",
        before="not attempt.ended and attempt.holder is None",
        after="not attempt.ended",
        tests=(f"{WITHOUT_ENGINE}::test_an_attempt_that_an_engine_has_again_stays_with_its_runner",),
    ),
    Mutant(
        name="a released attempt counts as a lost runner",
        target=f"{EPISODES}.resumptions:Resumptions.lose",
        before="self._totals.resumed += counts",
        after="self._totals.resumed += 1",
        tests=(f"{WITHOUT_ENGINE}::test_a_released_attempt_waits_for_an_engine_before_a_runner",),
    ),
    Mutant(
        name="a turn that an engine has again was never without one",
        target=f"{EPISODES}.attempt:OpenTurn.submit",
        before="self.was_without_engine |= self.submitted > 0.0",
        after="",
        tests=(f"{WITHOUT_ENGINE}::test_a_client_that_gave_up_without_an_engine_earns_nothing",),
    ),
    Mutant(
        name="the calls of an attempt have no bound",
        target=f"{EPISODES}.resumptions:Resumptions.called",
        before="attempt.call_characters > MOST_RESUME_BYTES",
        after="False",
        tests=(f"{RESUMPTIONS}::test_an_attempt_has_no_more_calls_than_can_be_handed_over",),
    ),
    Mutant(
        name="a runner stores calls of a program",
        target=f"{EPISODES}.resumptions:Resumptions.called",
        before="attempt.reruns",
        after="False",
        tests=(f"{RESUMPTIONS}::test_a_program_has_no_calls_that_its_runner_stores",),
    ),
    Mutant(
        name="an evaluation's episodes are a load of training",
        target=f"{EPISODES}.runner_service:_trains",
        before="attempt.key.prompt.evaluation is None",
        after="True",
        tests=(f"{METRICS}::test_episodes_of_evaluations_are_no_load_of_training",),
    ),
    Mutant(
        name="one answer has all lost attempts",
        target=f"{EPISODES}.runner_service:RunnerService._tasks",
        before="size >= MOST_RESUME_BYTES",
        after="False",
        tests=(f"{RESUMPTIONS}::test_one_answer_has_no_more_of_lost_attempts_than_can_be_handed_over",),
    ),
)
