"""Mutants of rljob_runtime.coordinator.store.tables."""

from hack.mutants import Mutant

PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
KEPT_SAMPLES = "tests/unit/coordinator/store/tables/test_kept_samples.py"
ON_POLICY_STORE = "tests/unit/coordinator/store/test_on_policy_store.py"
EVALUATION_SAMPLES = "tests/unit/coordinator/evaluation/test_samples.py"
TURNS = "tests/unit/coordinator/store/tables/test_turns.py"
BOOK = "tests/unit/coordinator/episodes/test_book.py"
KEPT = "tests/unit/coordinator/store/tables/test_kept_episodes.py"
TABLE = "rljob_runtime.coordinator.store.tables.turns"
ATTEMPTS = "rljob_runtime.coordinator.store.tables.attempts"

MUTANTS = (
    Mutant(
        name="a history of requests has no bound",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.history",
        before="bodies and left < 0",
        after="False",
        tests=(
            "tests/unit/coordinator/store/tables/test_turns.py::test_a_history_has_the_newest_turns_that_are_not_too_long_together",
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
        before="last_answer({node.id: node for node in nodes}).id",
        after="turns[0].node",
        tests=("tests/unit/coordinator/store/tables/test_turns.py::test_the_newest_turn_is_the_last_of_the_history",),
    ),
    Mutant(
        name="a reward sees the conversation of a sub-agent that ended last",
        target="rljob_runtime.coordinator.store.tables.turns:Turns.history",
        before="last_answer({node.id: node for node in nodes}).id",
        after="turns[-1].node",
        tests=("tests/unit/coordinator/episodes/test_scorer.py::test_a_sub_agent_that_ends_last_gives_no_answer",),
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
        name="a failed sample does not say why",
        target="rljob_runtime.coordinator.store.tables.kept_samples:KeptSamples._keep_early",
        before="failed.in_a_line()",
        after="None",
        tests=(
            "tests/unit/coordinator/store/tables/test_kept_samples.py::test_a_failed_sample_names_its_cause_in_a_line",
        ),
    ),
    Mutant(
        name="groups that end early fill the store",
        target="rljob_runtime.coordinator.store.tables.kept_samples:KeptSamples._keep_early",
        before="self.rules.per_round is None or counts[sample.outcome] < self.rules.per_round",
        after="True",
        tests=(f"{KEPT_SAMPLES}::test_many_groups_that_end_early_take_bounded_space",),
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
        name="a round that was decided is decided again",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds.under_way",
        before="OpenRound(plan, cursor_of(*cursor), {}, {}, {}, assigned, SelectedPlan.from_json(chosen), layout)",
        after="OpenRound(plan, cursor_of(*cursor), {}, {}, {}, assigned, layout=layout)",
        tests=(f"{PLAN_NEXT_ROUND}::test_another_coordinator_plays_the_round_as_it_was_decided",),
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
        name="an evaluation keeps samples of other prompts each time",
        target="rljob_runtime.coordinator.store.tables.kept_evaluations:KeptEvaluations.choose",
        before='f"{rules.seed}/{name}"',
        after='f"{rules.seed}/{step}"',
        tests=(f"{EVALUATION_SAMPLES}::test_best_worst_and_the_same_prompts_each_time_are_kept",),
    ),
    Mutant(
        name="a round may train on prompts of an evaluation",
        target="rljob_runtime.coordinator.store.tables.rounds:Rounds._draw",
        before="training_columns_of",
        after="columns_of",
        tests=(f"{ON_POLICY_STORE}::test_a_round_with_an_evaluation_prompt_is_refused_and_not_stored",),
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
        name="an open evaluation loses its attempts",
        target=f"{ATTEMPTS}:prune_evaluations",
        before=" AND (former OR state IS NOT NULL)",
        after="",
        text=True,
        tests=(f"{TURNS}::test_an_open_evaluation_keeps_its_attempts",),
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
    Mutant(
        name="a sample's calls have no seconds",
        target="rljob_runtime.coordinator.store.tables.kept_episodes:_with_seconds",
        before="call.id not in known",
        after="True",
        tests=(
            "tests/unit/coordinator/store/tables/test_kept_episodes.py"
            "::test_calls_have_the_seconds_that_their_runner_measured",
        ),
    ),
)
