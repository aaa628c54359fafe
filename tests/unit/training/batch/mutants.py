"""Mutants of rljob_runtime.training.batch."""

from hack.mutants import Mutant

EARLY_GRADIENTS = "tests/unit/training/step/test_early_gradients.py"

MUTANTS = (
    Mutant(
        name="early sums are used although a group is not trained on",
        target="rljob_runtime.training.batch.delivery:plan_train",
        before="progress.held.keys() <= blocks.keys() and _agree(progress.held, outlines)",
        after="_agree(progress.held, outlines)",
        tests=(EARLY_GRADIENTS,),
    ),
    Mutant(
        name="a rank is sent what it has summed",
        target="rljob_runtime.training.batch.delivery:plan_contribute",
        before="[prompt for prompt in blocks if not keeps or prompt not in progress.held]",
        after="list(blocks)",
        tests=(EARLY_GRADIENTS,),
    ),
    Mutant(
        name="groups with other log-probabilities are the same",
        target="rljob_runtime.training.batch.delivery:outline",
        before="np.ascontiguousarray(sample.logprobs).data",
        after='b""',
        tests=("tests/unit/training/batch/test_delivery.py::test_what_is_held_counts_as_a_whole_or_not_at_all",),
    ),
    Mutant(
        name="a response cut at the limit enters the loss",
        target="rljob_runtime.training.batch.rows:block_of",
        before="not (rules.mask_overlong and response.finish_reason is FinishReason.LENGTH)",
        after="True",
        tests=("tests/unit/training/step/test_gradients.py::test_a_step_of_masked_responses_only_changes_nothing",),
    ),
)
