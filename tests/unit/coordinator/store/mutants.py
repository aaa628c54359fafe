"""Mutants of rljob_runtime.coordinator.store."""

from hack.mutants import Mutant

PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
ASYNC_STORE = "tests/unit/coordinator/store/test_async_store.py"
KEPT_SAMPLES = "tests/unit/coordinator/store/test_kept_samples.py"
MIGRATIONS = "tests/unit/coordinator/store/test_migrations.py"
ON_POLICY_STORE = "tests/unit/coordinator/store/test_on_policy_store.py"
OPENING = "tests/unit/coordinator/store/test_opening.py"
RECENT_LENGTHS = "tests/unit/coordinator/store/test_recent_lengths.py"
PRUNING = "tests/unit/coordinator/store/test_pruning.py"
EVALUATION_SAMPLES = "tests/unit/coordinator/evaluation/test_samples.py"

MUTANTS = (
    Mutant(
        name="a history of requests has no bound",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.history",
        before="bodies and left < 0",
        after="False",
        tests=(
            "tests/unit/coordinator/store/test_turns.py::test_a_history_has_the_newest_turns_that_are_not_too_long_together",
        ),
    ),
    Mutant(
        name="all calls are read before they are too long",
        target="rljob_runtime.coordinator.store.tables.tool_calls:ToolCalls.of",
        before="left < 0",
        after="False",
        tests=(
            "tests/unit/coordinator/episodes/test_resumptions.py::test_an_attempt_of_too_many_bytes_to_hand_over_ends_and_says_so",
        ),
    ),
    Mutant(
        name="the newest turn is the first",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.history",
        before="turns[-1:] if newest else turns",
        after="turns[:1] if newest else turns",
        tests=("tests/unit/coordinator/store/test_turns.py::test_the_newest_turn_is_the_last_of_the_history",),
    ),
    Mutant(
        name="a coordinator forgets what switches cost",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds.close",
        before="measured.items()",
        after="()",
        tests=(
            f"{ON_POLICY_STORE}::test_costs_of_switches_are_those_of_the_newest_boundary",
            "tests/unit/coordinator/on_policy/test_switcher.py::test_a_restarted_coordinator_knows_what_switches_cost",
        ),
    ),
    Mutant(
        name="the oldest of the recent lengths are forgotten one by one",
        target="rljob_runtime.coordinator.store.round_history:recent_lengths",
        before="list(chain.from_iterable(reversed(found)))",
        after="list(chain.from_iterable(reversed(found)))[-least:]",
        tests=(f"{RECENT_LENGTHS}::test_rounds_are_forgotten_whole",),
    ),
    Mutant(
        name="a failed sample does not say why",
        target="rljob_runtime.coordinator.store.tables.kept_samples:KeptSamples._keep_early",
        before="failed.in_a_line()",
        after="None",
        tests=("tests/unit/coordinator/store/test_kept_samples.py::test_a_failed_sample_names_its_cause_in_a_line",),
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
        name="a prompt that was filtered is drawn again",
        target="rljob_runtime.coordinator.store.schema.asynchronous:TRIGGERS",
        before="f\"EXISTS (SELECT 1 FROM groups WHERE {_PROMPT} AND fate IS NOT 'requeued')\"",
        after="f\"EXISTS (SELECT 1 FROM groups WHERE {_PROMPT} AND ifnull(fate, 'trained') = 'trained')\"",
        tests=(f"{ASYNC_STORE}::test_the_store_refuses",),
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
        name="groups that end early fill the store",
        target="rljob_runtime.coordinator.store.tables.kept_samples:KeptSamples._keep_early",
        before="self.rules.per_round is None or counts[sample.outcome] < self.rules.per_round",
        after="True",
        tests=(f"{KEPT_SAMPLES}::test_many_groups_that_end_early_take_bounded_space",),
    ),
    Mutant(
        name="a volume that never answers is not slow",
        target="rljob_runtime.coordinator.store.latency_monitor:StoreLatencyMonitor.watch",
        before="self._waiting[:1]",
        after="self._waiting[:0]",
        tests=("tests/unit/coordinator/store/test_latency_monitor.py",),
    ),
    Mutant(
        name="a migrated store has no triggers",
        target="rljob_runtime.coordinator.store.schema.migrations:migrate",
        before="""
            for trigger in triggers:
                db.execute(trigger)
        """,
        after="""
            for trigger in ():
                db.execute(trigger)
        """,
        tests=(f"{MIGRATIONS}::test_the_schema_is_that_of_a_new_store",),
    ),
    Mutant(
        name="the round under way is lost in a migration",
        target="rljob_runtime.coordinator.store.schema.migrations:_from_3",
        before="db.execute(opened).fetchall()",
        after="()",
        tests=(f"{MIGRATIONS}::test_the_round_under_way_goes_on_where_it_was",),
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
        name="prompts that lost are not queued",
        target="rljob_runtime.coordinator.store.tables.boundaries:insert_boundary",
        before="json.dumps([str(prompt) for prompt in boundary.queue])",
        after='"[]"',
        tests=(
            "tests/unit/scheduling/test_tail_batching.py::test_short_rounds_race_and_long_rounds_finish_what_lost",
            ON_POLICY_STORE,
        ),
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
        tests=("tests/unit/coordinator/store/test_migrations.py::test_speeds_belong_to_the_layout_of_their_round",),
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
        name="the store lets anything be trained on",
        target="rljob_runtime.coordinator.store.schema.core:TRIGGERS",
        before=(
            "f\"NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE {_SAME} AND sample = NEW.sample)\""
        ),
        after='"0"',
        tests=(ON_POLICY_STORE,),
    ),
    Mutant(
        name="a round that was decided is decided again",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds.under_way",
        before="OpenRound(plan, cursor_of(*cursor), {}, {}, {}, assigned, SelectedPlan.from_json(chosen), layout)",
        after="OpenRound(plan, cursor_of(*cursor), {}, {}, {}, assigned, layout=layout)",
        tests=(f"{PLAN_NEXT_ROUND}::test_another_coordinator_plays_the_round_as_it_was_decided",),
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
        name="a queued prompt's attempts begin at zero",
        target="rljob_runtime.coordinator.store.tables.trajectories:Trajectories.draw",
        before="attempts.get(key, 0)",
        after="0",
        tests=(ON_POLICY_STORE,),
    ),
    Mutant(
        name="the versions of all pruned rounds are looked through",
        target="rljob_runtime.coordinator.store.tables.versions:WeightVersions.used",
        before="SELECT MIN(version) FROM versions INDEXED BY versions_by_step",
        after="SELECT MIN(version) FROM versions",
        text=True,
        tests=("tests/unit/coordinator/store/test_long_job.py",),
    ),
    Mutant(
        name="a response whose reward failed is no sample",
        target="rljob_runtime.coordinator.store.tables.trajectories:Trajectories.restart",
        before="self._kept_samples.keep_failed(step, key.prompt, key.sample, Failed(cause, reason))",
        after="",
        tests=(f"{KEPT_SAMPLES}::test_each_response_has_its_outcome_reason_and_scores",),
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
        tests=(f"{ON_POLICY_STORE}::test_the_store_thread_prunes_when_no_call_waits",),
    ),
    Mutant(
        name="an evaluation keeps samples of other prompts each time",
        target="rljob_runtime.coordinator.store.tables.kept_evaluations:KeptEvaluations.choose",
        before='f"{rules.seed}/{name}"',
        after='f"{rules.seed}/{step}"',
        tests=(f"{EVALUATION_SAMPLES}::test_best_worst_and_the_same_prompts_each_time_are_kept",),
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
        name="a round may train on prompts of an evaluation",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds._draw",
        before="training_columns_of",
        after="columns_of",
        tests=(f"{ON_POLICY_STORE}::test_a_round_with_an_evaluation_prompt_is_refused_and_not_stored",),
    ),
    Mutant(
        name="a group of an evaluation may be trained on",
        target="rljob_runtime.coordinator.store.async_store:AsyncStore.draw",
        before="training_columns_of",
        after="columns_of",
        tests=(f"{ASYNC_STORE}::test_a_group_of_an_evaluation_is_refused_and_the_cursor_stays",),
    ),
    Mutant(
        name="a reward of an attempt that failed is not counted",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.without_right_to_reward",
        before="row[0] in (None, EndState.ABORTED.value)",
        after="row[0] is None",
        tests=(
            (
                "tests/unit/coordinator/episodes/test_metrics.py"
                "::test_a_failure_of_ours_with_a_reward_is_counted_by_the_store"
            ),
        ),
    ),
)
