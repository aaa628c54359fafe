"""Mutants of rljob_runtime.training.batch."""

from hack.mutants import Mutant

EPISODE_GRADIENTS = "tests/unit/training/step/test_episode_gradients.py"
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
        name="groups with equal tokens at other places are the same",
        target="rljob_runtime.training.batch.delivery:outline",
        before="(*layout.spans, *layout.given, *layout.sampled)",
        after="()",
        tests=(f"{EPISODE_GRADIENTS}::test_equal_tokens_at_other_places_are_other_contents",),
    ),
    Mutant(
        name="given tokens take no room in a row",
        target="rljob_runtime.training.batch.rows:Sample.inputs",
        before="len(self.token_ids) + len(self.layout.given_token_ids) - len(self.layout.spans)",
        after="len(self.token_ids) - len(self.layout.spans)",
        tests=("tests/unit/training/model/test_packing.py::test_a_row_predicts_each_token_from_the_one_before_it",),
    ),
    Mutant(
        name="a response cut at the limit enters the loss",
        target="rljob_runtime.training.batch.rows:block_of",
        before="not (rules.mask_overlong and response.finish_reason is FinishReason.LENGTH)",
        after="True",
        tests=("tests/unit/training/step/test_gradients.py::test_a_step_of_masked_responses_only_changes_nothing",),
    ),
)
