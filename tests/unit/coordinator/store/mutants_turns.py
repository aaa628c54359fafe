"""Mutants of the store's episodes: digests, evaluations, pruning."""

from hack.mutants import Mutant

TURNS = "tests/unit/coordinator/store/tables/test_turns.py"
DIGESTS = "rljob_runtime.coordinator.store.trained_digests"
TRAINED = "tests/unit/coordinator/store/test_trained_digests.py"

MUTANTS = (
    Mutant(
        name="a digest of what was trained on leaves out what was given",
        target=f"{DIGESTS}:_sampled",
        before="context.extended(span.given)",
        after="context",
        tests=(f"{TRAINED}::test_a_group_has_the_digests_of_its_trees",),
    ),
    Mutant(
        name="the last copy of a response that is trained on twice counts",
        target=f"{DIGESTS}:trained_digests",
        before="sampled[scored.response.key] += _sampled(prompt, scored.response)",
        after="sampled[scored.response.key] = list(_sampled(prompt, scored.response))",
        tests=(f"{TRAINED}::test_a_response_that_is_trained_on_twice_has_another_digest",),
    ),
    Mutant(
        name="a digest of what was trained on takes each sequence for the first one",
        target=f"{DIGESTS}:_sampled",
        before="context = prompt",
        after="context, start = prompt, 0",
        tests=(f"{TRAINED}::test_a_group_has_the_digests_of_its_trees",),
    ),
    Mutant(
        name="attempts of evaluations stay for ever",
        target="rljob_runtime.coordinator.store.pruning:prune",
        before="attempts.prune_evaluations(db, first)",
        after="pass",
        tests=(f"{TURNS}::test_attempts_of_evaluations_go_with_the_boundary_of_their_weights",),
    ),
    Mutant(
        name="an evaluation under other settings goes on with its attempts",
        target="rljob_runtime.coordinator.store.evaluations:Evaluations.open",
        before="attempts.set_aside_evaluation(self._db, step, name)",
        after="pass",
        tests=(f"{TURNS}::test_an_evaluation_that_is_not_continued_has_no_attempts",),
    ),
)
