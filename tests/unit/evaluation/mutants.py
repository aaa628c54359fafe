"""Mutants of rljob_runtime.evaluation."""

from hack.mutants import Mutant

ESTIMATES = "tests/unit/evaluation/test_estimates.py"
RESULT = "tests/unit/evaluation/test_result.py"
LOG = "tests/unit/evaluation/test_log.py"
HISTORY = "tests/unit/evaluation/test_history.py"

MUTANTS = (
    Mutant(
        name="pass@k draws responses with replacement",
        target="rljob_runtime.evaluation.estimates:chance_of_pass",
        before="(subsets - comb(n - right, k)) / subsets",
        after="1 - ((n - right) / n) ** k",
        canary=True,
        tests=(f"{ESTIMATES}::test_pass_at_k_is_the_share_of_subsets_with_a_right_response",),
    ),
    Mutant(
        name="a prompt with too few responses failed pass@k",
        target="rljob_runtime.evaluation.estimates:pass_at_k",
        before="chance_of_pass(n, right, k) if n >= k else None",
        after="chance_of_pass(n, right, k) if n >= k else 0.0",
        tests=(f"{ESTIMATES}::test_pass_at_k",),
    ),
    Mutant(
        name="a prompt without responses has reward 0",
        target="rljob_runtime.evaluation.estimates:average_at_k",
        before="fsum(of_prompt) / len(of_prompt) if of_prompt else None",
        after="fsum(of_prompt) / len(of_prompt) if of_prompt else 0.0",
        tests=(f"{ESTIMATES}::test_averages",),
    ),
    Mutant(
        name="an error is that of a population",
        target="rljob_runtime.evaluation.estimates:_mean",
        before="count - 1",
        after="count",
        tests=(f"{ESTIMATES}::test_averages",),
    ),
    Mutant(
        name="rounding fails a right response",
        target="rljob_runtime.evaluation.estimates:passes",
        before="threshold - TOLERANCE",
        after="threshold",
        tests=(f"{ESTIMATES}::test_a_sum_of_weights_that_floating_point_rounds_down_passes",),
    ),
    Mutant(
        name="the reward that passes is not asked for",
        target="rljob_runtime.evaluation.result:summarize",
        before="passes(one.reward, evaluated.pass_reward)",
        after="passes(one.reward)",
        tests=(f"{RESULT}::test_a_threshold_says_what_passes",),
    ),
    Mutant(
        name="failed responses are not counted",
        target="rljob_runtime.evaluation.result:summarize",
        before="len(by_prompt) * evaluated.responses_per_prompt - scored",
        after="0",
        tests=(f"{RESULT}::test_a_failed_response_is_missing_and_not_wrong",),
    ),
    Mutant(
        name="an evaluation of one round replaces all of its name",
        target="rljob_runtime.evaluation.history:stays",
        before="earlier.key != result.key",
        after="earlier.name != result.name",
        tests=(f"{LOG}::test_rounds_that_are_trained_again_are_deleted_with_the_first_of_them",),
    ),
    Mutant(
        name="evaluations of abandoned weights stay",
        target="rljob_runtime.evaluation.history:stays",
        before="earlier.round <= result.round",
        after="True",
        tests=(f"{LOG}::test_rounds_that_are_trained_again_are_deleted_with_the_first_of_them",),
    ),
    Mutant(
        name="a file of evaluations keeps those of abandoned weights",
        target="rljob_runtime.evaluation.log:EvaluationLog.append",
        before="stays(one, result)",
        after="True",
        tests=(f"{LOG}::test_the_file_is_the_history",),
    ),
    Mutant(
        name="of equal weights the latest are the best",
        target="rljob_runtime.evaluation.history:best_of",
        before="one.round",
        after="-one.round",
        tests=(f"{HISTORY}::test_which_weights_are_the_best",),
    ),
    Mutant(
        name="weights are the best by another pass@k",
        target="rljob_runtime.evaluation.history:value_of",
        before="result.pass_at.get(result.responses_per_prompt)",
        after="result.pass_at.get(1)",
        tests=(f"{HISTORY}::test_which_weights_are_the_best",),
    ),
    Mutant(
        name="only the best model is kept, whatever a rewind abandons",
        target="rljob_runtime.evaluation.history:models_to_keep",
        before="(floor, *(one.round for one in results if one.round > floor))",
        after="[one.round for one in results][-1:]",
        tests=(f"{HISTORY}::test_which_models_are_kept",),
    ),
    Mutant(
        name="the best model gives way to a checkpoint",
        target="rljob_runtime.evaluation.history:model_to_give_up",
        before="best is None or step != best.round",
        after="True",
        tests=(f"{HISTORY}::test_which_model_gives_way_first",),
    ),
)
