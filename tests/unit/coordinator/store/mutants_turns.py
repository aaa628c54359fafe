"""Mutants of the store's episodes."""

from hack.mutants import Mutant

TURNS = "tests/unit/coordinator/store/test_turns.py"
BOOK = "tests/unit/coordinator/episodes/test_book.py"
KEPT = "tests/unit/coordinator/store/test_kept_episodes.py"
HISTORIES = "tests/unit/coordinator/store/test_turn_histories.py"
TABLE = "rljob_runtime.coordinator.store.tables.turns"
ATTEMPTS = "rljob_runtime.coordinator.store.tables.attempts"
DIGESTS = "rljob_runtime.coordinator.store.trained_digests"
TRAINED = "tests/unit/coordinator/store/test_trained_digests.py"

MUTANTS = (
    Mutant(
        name="a node that is committed again with other tokens passes",
        target=f"{TABLE}:Turns.commit",
        before="kept != row",
        after="False",
        tests=(f"{TURNS}::test_a_node_never_changes",),
    ),
    Mutant(
        name="the last end of an attempt counts",
        target=f"{TABLE}:Turns.end",
        before="id = ? AND state IS NULL",
        after="id = ?",
        text=True,
        tests=(f"{TURNS}::test_the_first_end_counts",),
    ),
    Mutant(
        name="nodes are read in the order of their ids",
        target=f"{TABLE}:Turns._kept",
        before="ORDER BY number",
        after="ORDER BY node",
        text=True,
        tests=(f"{TURNS}::test_nodes_are_in_the_order_of_their_commits",),
    ),
    Mutant(
        name="the prompt of a turn has only the tokens of its last node",
        target=f"{TABLE}:Turns.history",
        before='paths[node.parent] + array("i", node.token_ids)',
        after='array("i", node.token_ids)',
        tests=(f"{TURNS}::test_history_has_the_whole_prompt_of_each_turn",),
    ),
    Mutant(
        name="a metric that is no number reaches the store",
        target=f"{TABLE}:metrics_text",
        before="not math.isfinite(value)",
        after="False",
        tests=(f"{TURNS}::test_a_metric_that_is_no_finite_number_is_refused",),
    ),
    Mutant(
        name="half a character in a failure's text ends the coordinator",
        target=f"{TABLE}:Turns.end",
        before="storable_text(end.detail[:MOST_DETAIL])",
        after="end.detail[:MOST_DETAIL]",
        tests=(
            "tests/unit/coordinator/episodes/test_book.py::test_a_report_that_cannot_be_stored_does_not_end_the_coordinator",
        ),
    ),
    Mutant(
        name="an attempt of an earlier draw goes on",
        target=f"{ATTEMPTS}:set_aside",
        before="SET former = 1",
        after="SET former = former",
        text=True,
        tests=(f"{TURNS}::test_a_prompt_that_is_drawn_again_begins_without_attempts",),
    ),
    Mutant(
        name="an attempt of an undone round goes on",
        target=f"{ATTEMPTS}:undo_after",
        before="SET former = 1 WHERE (epoch, idx)",
        after="SET former = former WHERE (epoch, idx)",
        text=True,
        tests=(f"{TURNS}::test_a_rewind_keeps_the_attempts_of_undone_rounds_as_former_ones",),
    ),
    Mutant(
        name="a rewind leaves attempts tied to undone updates",
        target=f"{ATTEMPTS}:undo_after",
        before="UPDATE episodes SET step = NULL, loss = NULL WHERE step > ?",
        after="UPDATE episodes SET step = NULL, loss = NULL WHERE step > 1 + ?",
        text=True,
        tests=(f"{TURNS}::test_an_update_ties_its_responses_and_a_rewind_unties_them",),
    ),
    Mutant(
        name="an aborted attempt is tied to its update",
        target=f"{ATTEMPTS}:keep_trained",
        before='row[1] in ("completed", "truncated")',
        after="True",
        tests=(f"{TURNS}::test_an_attempt_without_a_good_end_is_not_tied",),
    ),
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
        name="a new store gives the numbers of the one that was lost",
        target=f"{ATTEMPTS}:begin_numbers",
        before="term > 1",
        after="False",
        tests=(f"{TURNS}::test_numbers_are_not_given_again",),
    ),
    Mutant(
        name="requests stay as long as their turns",
        target=f"{ATTEMPTS}:_drop_bodies",
        before="SET {column} = NULL",
        after="SET {column} = {column}",
        text=True,
        tests=(f"{TURNS}::test_requests_go_when_their_round_closes",),
    ),
    Mutant(
        name="attempts stay when their round is pruned",
        target=f"{ATTEMPTS}:prune_round",
        before="DELETE FROM episodes WHERE (epoch, idx) IN",
        after="DELETE FROM episodes WHERE FALSE AND (epoch, idx) IN",
        text=True,
        tests=(f"{TURNS}::test_attempts_go_with_their_prompts",),
    ),
    Mutant(
        name="a pruned round takes attempts of later draws along",
        target=f"{ATTEMPTS}:prune_round",
        before="AND step > p.step",
        after="AND step > p.step + 9",
        text=True,
        tests=(f"{TURNS}::test_attempts_go_with_their_prompts",),
    ),
    Mutant(
        name="attempts of evaluations stay for ever",
        target="rljob_runtime.coordinator.store.pruning:prune",
        before="attempts.prune_evaluations(db, first)",
        after="pass",
        tests=(f"{TURNS}::test_attempts_of_evaluations_go_with_the_boundary_of_their_weights",),
    ),
    Mutant(
        name="an open evaluation loses its attempts",
        target=f"{ATTEMPTS}:prune_evaluations",
        before=" AND (former OR state IS NOT NULL)",
        after="",
        text=True,
        tests=(f"{TURNS}::test_an_open_evaluation_keeps_its_attempts",),
    ),
    Mutant(
        name="an evaluation under other settings goes on with its attempts",
        target="rljob_runtime.coordinator.store.evaluations:Evaluations.open",
        before="attempts.set_aside_evaluation(self._db, step, name)",
        after="pass",
        tests=(f"{TURNS}::test_an_evaluation_that_is_not_continued_has_no_attempts",),
    ),
    Mutant(
        name="a runner names sources for the store",
        target=f"{TABLE}:Turns.newest",
        before="known_columns_of(self._db, key.prompt)",
        after="columns_of(self._db, key.prompt)",
        tests=(f"{BOOK}::test_a_runner_that_names_what_was_never_drawn_leaves_no_trace",),
    ),
    Mutant(
        name="an evaluation of abandoned weights goes on with its attempts",
        target=f"{ATTEMPTS}:undo_after",
        before="SET former = 1 WHERE epoch BETWEEN",
        after="SET former = former WHERE epoch BETWEEN",
        text=True,
        tests=(f"{TURNS}::test_an_evaluation_that_is_not_continued_has_no_attempts",),
    ),
    Mutant(
        name="the cause of a sample has a text of others",
        target="rljob_runtime.coordinator.store.tables.kept_episodes:kept_episode",
        before="cause=ended.cause if ended is not None else None",
        after="cause=ended.reason if ended is not None else None",
        tests=(f"{KEPT}::test_an_aborted_attempt_has_its_cause_apart_from_the_detail",),
    ),
    Mutant(
        name="an example in a prompt is an answer of the model",
        target="rljob_runtime.coordinator.store.tables.kept_episodes:_divide",
        before="spoken[len(spoken) - len(path) + 1 :]",
        after="spoken[: len(path) - 1]",
        tests=(f"{KEPT}::test_turns_have_the_messages_and_the_calls_of_their_requests",),
    ),
    Mutant(
        name="samples are chosen after the requests are deleted",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds.close",
        before="self._kept_samples.close_round(step); attempts.set_aside(self._db, settlement.outcomes)",
        after="attempts.set_aside(self._db, settlement.outcomes); self._kept_samples.close_round(step)",
        tests=(f"{KEPT}::test_turns_have_the_messages_and_the_calls_of_their_requests",),
    ),
    Mutant(
        name="a turn's request has no time",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.commit",
        before="(opened, asked_by) if node.is_sampled else (None, None)",
        after="(None, asked_by if node.is_sampled else None)",
        tests=(f"{TURNS}::test_the_seconds_of_a_turn_are_kept",),
    ),
    Mutant(
        name="a sample's seconds outside have the time without a runner",
        target="rljob_runtime.coordinator.store.tables.kept_episodes:sample_turns",
        before="counted_seconds(before, node.opened, pauses)",
        after="counted_seconds(before, node.opened)",
        tests=(
            "tests/unit/coordinator/episodes/test_resumed_times.py::test_seconds_and_moments_are_those_with_a_runner",
        ),
    ),
)
