"""Mutants of rljob_runtime.coordinator.store."""

from hack.mutants import Mutant

PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
ASYNC_STORE = "tests/unit/coordinator/store/test_async_store.py"
KEPT_SAMPLES = "tests/unit/coordinator/store/tables/test_kept_samples.py"
ON_POLICY_STORE = "tests/unit/coordinator/store/test_on_policy_store.py"
OPENING = "tests/unit/coordinator/store/test_opening.py"
RECENT_LENGTHS = "tests/unit/coordinator/store/test_recent_lengths.py"
PRUNING = "tests/unit/coordinator/store/test_pruning.py"
EVALUATION_SAMPLES = "tests/unit/coordinator/evaluation/test_samples.py"
TURNS = "tests/unit/coordinator/store/tables/test_turns.py"
DIGESTS = "rljob_runtime.coordinator.store.trained_digests"
TRAINED = "tests/unit/coordinator/store/test_trained_digests.py"

MUTANTS = (
    Mutant(
        name="the oldest of the recent lengths are forgotten one by one",
        target="rljob_runtime.coordinator.store.round_history:recent_lengths",
        before="list(chain.from_iterable(reversed(found)))",
        after="list(chain.from_iterable(reversed(found)))[-least:]",
        tests=(f"{RECENT_LENGTHS}::test_rounds_are_forgotten_whole",),
    ),
    Mutant(
        name="a requeued prompt's lengths count twice",
        target="rljob_runtime.coordinator.store.round_lengths:_ENDED",
        before="\"fate IN ('trained', 'filtered')\"",
        after='"fate IS NOT NULL"',
        tests=(
            "tests/unit/coordinator/samples/test_metrics_of_samples.py::"
            "test_the_lengths_of_a_round_are_those_of_its_samples",
        ),
    ),
    Mutant(
        name="a group that is filtered late has no lengths",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.count_late",
        before="ended > ?1",
        after="ended < ?1",
        text=True,
        tests=(f"{ASYNC_STORE}::test_a_filtered_group_counts_in_the_update_under_way",),
    ),
    Mutant(
        name="a rewind gives back groups without their tokens",
        target="rljob_runtime.coordinator.store.async_rewind:give_back",
        before="draw = g.draw AND tokens IS NOT NULL) ORDER BY step, place",
        after="draw = g.draw AND tokens < 0) ORDER BY step, place",
        text=True,
        tests=(f"{ASYNC_STORE}::test_a_rewind_before_the_last_checkpoint_draws_lost_prompts_again",),
    ),
    Mutant(
        name="what a move's source made after the offset stays",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.move",
        before='f"DELETE FROM experience_chunks WHERE {OF_SAMPLE} AND start >= ?"',
        after='f"DELETE FROM experience_chunks WHERE {OF_SAMPLE} AND start > ?"',
        tests=(f"{ASYNC_STORE}::test_a_move_cuts_at_its_offset_and_goes_on_from_there",),
    ),
    Mutant(
        name="a chunk that a move cuts stays whole",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.move",
        before="AND sample = ?5 AND start + length(tokens) / 4 > ?1",
        after="AND sample = ?5 AND start > ?1",
        text=True,
        tests=(f"{ASYNC_STORE}::test_a_move_cuts_at_its_offset_and_goes_on_from_there",),
    ),
    Mutant(
        name="attempts of earlier draws are forgotten",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.draw",
        before="attempts[one]",
        after="0",
        tests=(f"{ASYNC_STORE}::test_requeued_prompts_wait_in_the_order_in_which_they_were_requeued",),
    ),
    Mutant(
        name="tokens that no checkpoint has made final are dropped",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.forget",
        before="WHERE tokens IS NULL AND fate = 'trained' AND step <= ? LIMIT ?",
        after="WHERE tokens IS NULL AND fate = 'trained' AND step <= ? + 1 LIMIT ?",
        text=True,
        tests=(f"{ASYNC_STORE}::test_a_rewind_gives_back_what_later_updates_took",),
    ),
    Mutant(
        name="all tokens go in one transaction, however many",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.forget",
        before="chunks >= FORGOTTEN_CHUNKS",
        after="chunks < 0",
        tests=(f"{ASYNC_STORE}::test_tokens_that_are_needed_no_more_go_in_pieces",),
    ),
    Mutant(
        name="a new store gives the attempts of the one that was lost",
        target="rljob_runtime.coordinator.store.connection:begin_attempts",
        before="(term - 1) * ATTEMPTS_A_TERM",
        after="0",
        tests=(
            (
                "tests/unit/coordinator/trainer/test_recovery.py::test_no_attempt_of_a_store_that_was_lost_is_"
                "given_again"
            ),
        ),
    ),
    Mutant(
        name="a full volume of the store is a traceback",
        target="rljob_runtime.coordinator.store.connection:file_errors_stated",
        before="_code(error) not in _OF_THE_FILE",
        after="_code(error) == sqlite3.SQLITE_FULL",
        tests=("tests/unit/coordinator/store/test_full_disk.py",),
    ),
    Mutant(
        name="a full disk's own roll-back hides it",
        target="rljob_runtime.coordinator.store.connection:transaction",
        before="if db.in_transaction:\n    for statement in undo:\n        db.execute(statement)",
        after="for statement in undo:\n    db.execute(statement)",
        tests=("tests/unit/coordinator/store/test_full_disk.py",),
    ),
    Mutant(
        name="an opening that was given up goes on",
        target="rljob_runtime.coordinator.store.connection:Opening.give_up",
        before="self._given_up = True",
        after="pass",
        tests=(f"{OPENING}::test_a_cancelled_opening_ends_and_holds_nothing",),
    ),
    Mutant(
        name="a volume that never answers is not slow",
        target="rljob_runtime.coordinator.store.latency_monitor:StoreLatencyMonitor.watch",
        before="self._waiting[:1]",
        after="self._waiting[:0]",
        tests=("tests/unit/coordinator/store/test_latency_monitor.py",),
    ),
    Mutant(
        name="a store that another process holds is not waited for",
        target="rljob_runtime.coordinator.store.opening:open_store",
        before="clock() - since >= patience",
        after="True",
        tests=(f"{OPENING}::test_a_store_held_by_another_process_is_awaited",),
    ),
    Mutant(
        name="fresh draws of pruned rounds are not counted",
        target="rljob_runtime.coordinator.store.pruning:_prune_round",
        before="SUM(NOT queued)",
        after="0 * SUM(NOT queued)",
        text=True,
        tests=(f"{PRUNING}::test_the_audits_totals_are_those_of_the_whole_history[on policy]",),
    ),
    Mutant(
        name="anchors go with their round",
        target="rljob_runtime.coordinator.store.pruning:_keep_anchors",
        before='db.execute("UPDATE anchors SET step = ? WHERE step = ?", (step, first))',
        after="pass",
        tests=(f"{PRUNING}::test_anchors_outlive_their_rounds",),
    ),
    Mutant(
        name="what ended at a former limit has ended",
        target="rljob_runtime.coordinator.store.round_history:_lengths",
        before="finish IS NOT NULL AND (finish != ? OR tokens >= ?) FROM",
        after="finish IS NOT NULL AND (finish != ? OR tokens >= ? OR 1) FROM",
        text=True,
        tests=(
            f"{PLAN_NEXT_ROUND}::test_what_ended_at_a_limit_that_was_raised_since_counts_as_stopped",
            f"{RECENT_LENGTHS}::test_all_responses_count_and_stopped_ones_as_such",
        ),
    ),
    Mutant(
        name="a round that nothing explains changes no belief",
        target="rljob_runtime.coordinator.store.round_history:remembered",
        before="history_start(predicted.fetchall())",
        after="0",
        tests=(f"{PLAN_NEXT_ROUND}::test_an_unexplained_round_restarts_the_length_history",),
    ),
    Mutant(
        name="the store mixes the speeds of two layouts",
        target="rljob_runtime.coordinator.store.round_history:_speeds",
        before="tensor_parallel = ?",
        after="? IS NOT NULL",
        text=True,
        tests=(
            "tests/unit/coordinator/store/schema/test_migrations.py::test_speeds_belong_to_the_layout_of_their_round",
        ),
    ),
    Mutant(
        name="the slow-down of streaming is forgotten",
        target="rljob_runtime.coordinator.store.round_history:_speeds",
        before="tuple(Speed.from_json(text) for (text,) in reversed(rows))",
        after="() if stream else tuple(Speed.from_json(text) for (text,) in reversed(rows))",
        tests=(f"{PLAN_NEXT_ROUND}::test_engine_speed_during_training_is_remembered_without_limit",),
    ),
    Mutant(
        name="an update's cost is learned where loaned machines did the work",
        target="rljob_runtime.coordinator.store.round_history:remembered",
        before="(one for one in rounds if not one.report.loaned_machines)",
        after="(one for one in rounds)",
        tests=(f"{PLAN_NEXT_ROUND}::test_rounds_with_loans_teach_no_update_cost",),
    ),
    Mutant(
        name="the store's journal is never brought into its file",
        target="rljob_runtime.coordinator.store.store:Store.tidy",
        before="self._db.total_changes - self._tidied >= TIDY_ROWS or self._turns >= TIDY_TURNS",
        after="self._turns >= TIDY_TURNS",
        tests=(f"{ON_POLICY_STORE}::test_the_journal_is_brought_into_the_file_once_enough_was_written",),
    ),
    Mutant(
        name="the journal of a small job grows with every turn",
        target="rljob_runtime.coordinator.store.store:Store.tidy",
        before="self._db.total_changes - self._tidied >= TIDY_ROWS or self._turns >= TIDY_TURNS",
        after="self._db.total_changes - self._tidied >= TIDY_ROWS",
        tests=(f"{ON_POLICY_STORE}::test_the_journal_is_brought_into_the_file_once_enough_was_written",),
    ),
    Mutant(
        name="a rewind keeps the samples of the rounds that it abandons",
        target="rljob_runtime.coordinator.store.store:Store.rewind",
        before="self.samples.forget_after(step)",
        after="",
        tests=(f"{KEPT_SAMPLES}::test_a_rewind_abandons_what_was_not_written",),
    ),
    Mutant(
        name="the store's thread never tidies up",
        target="rljob_runtime.coordinator.store.store_thread:StoreThread.do",
        before="self._thread.submit(self._tidy)",
        after="",
        tests=("tests/unit/coordinator/store/test_store_thread.py::test_the_store_thread_prunes_when_no_call_waits",),
    ),
    Mutant(
        name="an abandoned evaluation leaves samples",
        target="rljob_runtime.coordinator.store.evaluations:Evaluations._end",
        before='column == "result"',
        after="True",
        tests=(f"{EVALUATION_SAMPLES}::test_an_abandoned_evaluation_has_no_samples",),
    ),
    Mutant(
        name="a part of a transaction that failed is stored with the rest",
        target="rljob_runtime.coordinator.store.connection:transaction",
        before="db.execute(statement)",
        after="pass",
        tests=("tests/unit/coordinator/episodes/test_journal.py::test_a_part_of_a_transaction_is_undone_by_itself",),
    ),
    Mutant(
        name="a group of an evaluation may be trained on",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.draw",
        before="training_columns_of",
        after="columns_of",
        tests=(f"{ASYNC_STORE}::test_a_group_of_an_evaluation_is_refused_and_the_cursor_stays",),
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
