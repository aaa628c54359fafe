"""Mutants of rljob_runtime.audit."""

from hack.mutants import Mutant

HISTORIES = "tests/unit/audit/test_histories.py"
LINEAGE = "tests/unit/audit/test_lineage.py"

MUTANTS = (
    Mutant(
        name="a restart forgets the cursors of sources",
        target="rljob_runtime.audit.stored_keys:cursor_of",
        before="tuple(SourceCursor(*one) for one in json.loads(sources))",
        after="()",
        tests=("tests/unit/coordinator/test_sources.py::test_other_weights_count_from_the_change",),
    ),
    Mutant(
        name="a round out of its shares passes the audit",
        target="rljob_runtime.audit.on_policy:_shares",
        before="found > groups or (found < groups and not filtered[name])",
        after="False",
        tests=("tests/unit/coordinator/test_sources.py::test_audit_finds_a_round_out_of_its_shares",),
    ),
    Mutant(
        name="asynchronous draws out of their shares pass the audit",
        target="rljob_runtime.audit.shares:share_findings",
        before="count > (most := before[name] + drawn.get(name, 0))",
        after="count > (most := before[name] + 2 * drawn.get(name, 0))",
        tests=("tests/unit/coordinator/test_sources.py::test_counts_of_asynchronous_draws",),
    ),
    Mutant(
        name="the history check believes that what was assigned was trained on",
        target="rljob_runtime.audit.asynchronous:_draw",
        before="draw.outcome is None and draw.step is not None and draw.step != updates.ended + 1",
        after="False",
        tests=(
            (
                f"{HISTORIES}::test_what_is_wrong_with_groups_is_told_with_its_"
                "key[it is assigned to an update that is over]"
            ),
        ),
    ),
    Mutant(
        name="the history check lets a response be trained on twice",
        target="rljob_runtime.audit.on_policy:_RESPONSES",
        before="HAVING COUNT(*) > 1",
        after="HAVING COUNT(*) > 2",
        text=True,
        tests=(f"{HISTORIES}::test_what_is_wrong_with_rounds_is_told_with_its_key[a response is trained on twice]",),
        canary=True,
    ),
    Mutant(
        name="the history check does not count what the cursor passed",
        target="rljob_runtime.audit.updates:passed_over",
        before="missing > skipped",
        after="False",
        tests=(f"{HISTORIES}::test_what_is_wrong_with_rounds_is_told_with_its_key[a prompt is gone]",),
    ),
    Mutant(
        name="the audit does not look at pruned sums",
        target="rljob_runtime.audit.updates:Updates.gaps",
        before="yield from self.pruned.findings()",
        after="",
        tests=("tests/unit/coordinator/store/test_pruning.py::test_what_is_wrong_with_the_sums_is_found",),
    ),
    Mutant(
        name="the lineage check does not compare what was trained on",
        target="rljob_runtime.audit.lineage:_response",
        before="trained_digest(_in_contexts(nodes), one.reward or 0.0) != one.digest",
        after="False",
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[a trained logprob is another-rounds]",
        ),
    ),
    Mutant(
        name="the lineage check does not look at what was given",
        target="rljob_runtime.audit.lineage:_in_contexts",
        before="context.extended(node.tokens)",
        after="context.extended(node.tokens) if node.is_sampled else context",
        tests=(f"{LINEAGE}::test_rounds_of_episodes_pass",),
    ),
    Mutant(
        name="the lineage check does not look at digests of format 17",
        target="rljob_runtime.audit.lineage:_response",
        before="loss_digest(tokens, logprobs) != one.digest",
        after="False",
        tests=(f"{LINEAGE}::test_digests_of_format_17_prove_sampled_tokens",),
    ),
    Mutant(
        name="the lineage check lets a reward be trained on that the environment did not give",
        target="rljob_runtime.audit.lineage:_response",
        before="one.given not in (None, one.term)",
        after="False",
        tests=(f"{LINEAGE}::test_a_reward_is_that_of_its_attempt_and_of_its_training",),
    ),
    Mutant(
        name="a reward of several rules is taken for that of the environment",
        target="rljob_runtime.audit.lineage:_ONLY_TERM",
        before="= 1",
        after="> 0",
        text=True,
        tests=(f"{LINEAGE}::test_only_a_reward_of_the_environment_alone_is_compared_with_its_own",),
    ),
    Mutant(
        name="the lineage check lets an aborted attempt be trained on",
        target="rljob_runtime.audit.lineage:_response",
        before='one.state not in ("completed", "truncated")',
        after="False",
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[the trained attempt is aborted-rounds]",
        ),
    ),
    Mutant(
        name="the lineage check lets a response have no origin",
        target="rljob_runtime.audit.lineage:_ties",
        before="HAVING SUM(e.step IS r.step) <> 1",
        after="HAVING SUM(e.step IS r.step) > 1",
        text=True,
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[a response is of no attempt-rounds]",
        ),
    ),
    Mutant(
        name="the lineage check looks at responses with attempts only",
        target="rljob_runtime.audit.lineage:_ties",
        before="LEFT JOIN episodes",
        after="JOIN episodes",
        text=True,
        tests=(f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[a response has no attempt-rounds]",),
    ),
    Mutant(
        name="the lineage check lets a response have two origins",
        target="rljob_runtime.audit.lineage:_ties",
        before="HAVING SUM(e.step IS r.step) <> 1",
        after="HAVING SUM(e.step IS r.step) = 0",
        text=True,
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[a response is of two attempts-rounds]",
        ),
    ),
    Mutant(
        name="the check takes any aborted attempt for a failed environment",
        target="rljob_runtime.audit.lineage:_filtered",
        before="AND a.cause NOT IN (?, ?)",
        after="AND ? IS NOT ?",
        text=True,
        tests=(
            f"{LINEAGE}::test_a_group_of_a_failed_environment_has_an_attempt_that_failed"
            "[rounds-prompts-not needed-20-False]",
        ),
    ),
    Mutant(
        name="the check does not count hand-backs of a failed environment",
        target="rljob_runtime.audit.lineage:_filtered",
        before="HAVING COUNT(*) > {MOST_HAND_BACKS}",
        after="HAVING COUNT(*) > 0",
        text=True,
        tests=(
            f"{LINEAGE}::test_a_group_of_a_failed_environment_has_an_attempt_that_failed"
            "[rounds-prompts-runner left-8-False]",
        ),
    ),
    Mutant(
        name="the check does not see that a call of a tool was executed twice",
        target="rljob_runtime.audit.lineage:_tool_calls",
        before="executions != 1",
        after="False",
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key"
            "[a call of a tool is executed twice-rounds]",
        ),
    ),
    Mutant(
        name="the check lets a reward be that of another program than the turns",
        target="rljob_runtime.audit.lineage:_unrepeated",
        before="t.resumption IS NOT e.resumption",
        after="FALSE",
        text=True,
        tests=(
            f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key"
            "[a program that did not end the attempt asked for a turn-rounds]",
        ),
    ),
    Mutant(
        name="the lineage check lets an episode go back to older weights",
        target="rljob_runtime.audit.lineage:_WRONG_NODES",
        before="p.version > t.version",
        after="FALSE",
        text=True,
        tests=(f"{LINEAGE}::test_an_episode_that_goes_back_to_older_weights_is_told_by_its_turn",),
    ),
    Mutant(
        name="the lineage check does not look for fake zeros",
        target="rljob_runtime.audit.lineage:_attempts",
        before="e.state = 'aborted'",
        after="FALSE",
        text=True,
        tests=(f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[a fake zero-rounds]",),
    ),
    Mutant(
        name="the lineage check does not compare tokens that wait for a checkpoint",
        target="rljob_runtime.audit.lineage:_response",
        before="one.held",
        after="False",
        tests=(f"{LINEAGE}::test_tokens_that_wait_for_a_checkpoint_are_compared",),
    ),
    Mutant(
        name="the lineage check takes the absence of all attempts for a job without episodes",
        target="rljob_runtime.audit.lineage:audit_episodes",
        before="not _has_episodes(db, tables)",
        after="db.execute('SELECT 1 FROM episodes LIMIT 1').fetchone() is None",
        tests=(f"{LINEAGE}::test_responses_are_without_origin_if_all_attempts_are_gone[numbers-rounds]",),
    ),
    Mutant(
        name="reports of rounds say nothing about episodes that are gone",
        target="rljob_runtime.audit.lineage:_has_episodes",
        before="= 'object'",
        after="= 'no type'",
        text=True,
        tests=(f"{LINEAGE}::test_responses_are_without_origin_if_all_attempts_are_gone[reports-rounds]",),
    ),
    Mutant(
        name="the first number of a term passes for that of an attempt",
        target="rljob_runtime.audit.lineage:_has_episodes",
        before="number % NUMBERS_A_TERM",
        after="number",
        tests=(f"{LINEAGE}::test_a_job_without_environments_has_no_line_about_episodes[7]",),
    ),
    Mutant(
        name="the lineage check reads nodes in the order of their ids",
        target="rljob_runtime.audit.lineage:_nodes_of",
        before="ORDER BY number",
        after="ORDER BY node",
        text=True,
        tests=(f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[turns are in another order-rounds]",),
    ),
    Mutant(
        name="a reward of minus zero is another one than the store has",
        target="rljob_runtime.audit.stored_turns:trained_digest",
        before="reward + 0.0",
        after="reward",
        tests=("tests/unit/coordinator/store/test_trained_digests.py::test_a_negative_zero_is_a_zero_as_in_the_store",),
    ),
    Mutant(
        name="the lineage check trusts that a digest is there",
        target="rljob_runtime.audit.lineage:_response",
        before="isinstance(one.digest, bytes)",
        after="True",
        tests=(f"{LINEAGE}::test_what_is_wrong_with_episodes_is_told_with_its_key[the digest is gone-rounds]",),
    ),
)
