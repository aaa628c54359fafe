"""Mutants of rljob_runtime.coordinator.evaluation."""

from hack.mutants import Mutant

EVALUATIONS = "tests/unit/coordinator/evaluation/test_evaluations.py"
MOVES = "tests/unit/coordinator/evaluation/test_moves.py"
SAMPLES = "tests/unit/coordinator/evaluation/test_samples.py"
EVALUATOR = "rljob_runtime.coordinator.evaluation.evaluator:Evaluator"

MUTANTS = (
    Mutant(
        name="an evaluation counts what it does not ask any more among its samples",
        target="rljob_runtime.coordinator.evaluation.work:EvaluationInProgress.uncounted",
        before="(one.prompt, one.sample) not in counted",
        after="False",
        tests=(f"{SAMPLES}::test_what_an_evaluation_does_not_ask_any_more_is_not_counted",),
    ),
    Mutant(
        name="responses of a lost replica are not started again for an evaluation",
        target=f"{EVALUATOR}.retain",
        before="not self._still_in(pool, one.lease.replica)",
        after="False",
        tests=(f"{EVALUATIONS}::test_result_survives_the_loss_of_a_machine",),
    ),
    Mutant(
        name="a response of an evaluation that starts again has another seed",
        target=f"{EVALUATOR}._request",
        before="seed=evaluation_seed(self._context.settings.seed, launch.key)",
        after="seed=evaluation_seed(self._context.settings.seed + launch.lease.attempt, launch.key)",
        tests=(f"{MOVES}::test_responses_that_move_to_another_replica_give_the_same_numbers",),
    ),
    Mutant(
        name="a restarted coordinator forgets the samples of an evaluation",
        target="rljob_runtime.coordinator.evaluation.work:EvaluationInProgress.missing",
        before="(key.prompt.index, key.sample) not in known",
        after="True",
        tests=(f"{EVALUATIONS}::test_result_survives_a_coordinator_that_is_killed_at_any_moment",),
    ),
    Mutant(
        name="a failed reward of an evaluation counts as 0",
        target="rljob_runtime.coordinator.evaluation.work:sample_of",
        before="None if isinstance(reward, RewardFailure) else float(reward)",
        after="0.0 if isinstance(reward, RewardFailure) else float(reward)",
        tests=(f"{EVALUATIONS}::test_failed_rewards_are_missing_and_not_zero",),
        canary=True,
    ),
    Mutant(
        name="an aborted episode of an evaluation is scored again",
        target=f"{EVALUATOR}._record",
        before="failure.aborted",
        after="False",
        tests=(
            "tests/unit/coordinator/episodes/test_job.py::test_an_evaluation_generates_what_a_failure_of_ours_ended_again",
        ),
    ),
    Mutant(
        name="an evaluation asks a machine that still writes its KV",
        target="rljob_runtime.coordinator.evaluation.stage:EvaluationStage._available",
        before="not one.loaned and not one.stopping",
        after="not one.loaned",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_chains.py::test_an_evaluation_does_without_a_machine_that_still_writes",
        ),
    ),
)
