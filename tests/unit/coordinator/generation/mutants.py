"""Mutants of rljob_runtime.coordinator.generation."""

from hack.mutants import Mutant

CHAINS = "tests/unit/coordinator/on_policy/test_switch_chains.py"
POOL = "tests/unit/coordinator/generation/test_replica_pool.py"
LOOP = "tests/unit/coordinator/on_policy/test_loop.py"

PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
OBSERVER = "rljob_runtime.coordinator.generation.engine_observer:EngineObserver"
ADAPTIVE = "tests/unit/scheduling/layouts/test_adaptive_switches.py"

MUTANTS = (
    Mutant(
        name="a machine that has switched is taken for one of most machines' size",
        target="rljob_runtime.coordinator.generation.observed_engines:ObservedEngines.other_speeds",
        before="size != self.size",
        after="False",
        tests=("tests/unit/coordinator/generation/test_observed_engines.py",),
    ),
    Mutant(
        name="a replica whose responses all wait for programs generates",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool._record_ends",
        before="self._waiting.add(replica.name)",
        after="pass",
        tests=(f"{POOL}::test_a_replica_whose_responses_all_wait_for_programs_does_not_generate",),
    ),
    Mutant(
        name="an abort waits for a machine that writes its KV",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool._of_others",
        before="machine_of(launch.lease.replica) not in self._stopping",
        after="True",
        tests=(f"{CHAINS}::test_a_round_that_ends_while_a_machine_writes_does_not_wait_for_it",),
    ),
    Mutant(
        name="a round waits while a machine takes its KV",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool.submit",
        before='self._tasks.start(self._submit_with_kv(replica, its), name=f"import-{name}")',
        after="await self._submit_with_kv(replica, its)",
        tests=(
            "tests/unit/coordinator/on_policy/test_kv_handover.py::test_a_round_goes_on_while_a_machine_takes_its_kv",
        ),
    ),
    Mutant(
        name="to compute tokens again is free until it was measured",
        target="rljob_runtime.coordinator.generation.observed_engines:engine_speed",
        before="not latency.prefill_token_seconds",
        after="False",
        tests=(f"{ADAPTIVE}::test_prefill_is_not_free_before_it_has_been_measured",),
    ),
    Mutant(
        name="attention waits for all-reduces",
        target="rljob_runtime.coordinator.generation.observed_engines:_without_transfers.bounded",
        before="min(latency.prefill_token_seconds, least)",
        after="latency.prefill_token_seconds",
        tests=(f"{ADAPTIVE}::test_all_reduces_are_no_part_of_attention",),
    ),
    Mutant(
        name="surprises of a round are averaged away",
        target="rljob_runtime.coordinator.generation.observed_engines:sized_engines",
        before="guard.slowdown(size) > 1",
        after="False",
        tests=(f"{ADAPTIVE}::test_the_model_of_a_size_follows_surprises_of_the_round",),
    ),
    Mutant(
        name="latencies of two layouts are fitted as one",
        target=f"{OBSERVER}._learn",
        before="self._layout(size)",
        after="self._layout(1)",
        tests=(f"{PLAN_NEXT_ROUND}::test_each_layout_of_a_round_has_its_own_latency",),
    ),
    Mutant(
        name="a sample spans a layout switch",
        target=f"{OBSERVER}.record",
        before="last.tensor_parallel == size",
        after="True",
        tests=(f"{PLAN_NEXT_ROUND}::test_each_layout_of_a_round_has_its_own_latency",),
    ),
    Mutant(
        name="a restarted replica goes on with the steps of the former one",
        target=f"{OBSERVER}.record",
        before="last.boot == report.boot",
        after="True",
        tests=(f"{PLAN_NEXT_ROUND}::test_the_watch_learns_nothing_from_another_boot",),
    ),
    Mutant(
        name="passes over prompts teach nothing",
        target=f"{OBSERVER}._learn",
        before="(now.decode - before.decode, now.prefill - before.prefill)",
        after="(now.decode - before.decode,)",
        tests=(f"{PLAN_NEXT_ROUND}::test_the_watch_finds_the_latency_of_an_engine_that_it_polls[0.5-one launch]",),
    ),
    Mutant(
        name="replicas are those that had something to do",
        target="rljob_runtime.coordinator.generation.engine_observer:EngineObserver.record_submitted",
        before="max(seen.replicas, count)",
        after="max(seen.replicas, sum(self._layout_of(name) == size for name in names))",
        tests=(
            (
                "tests/unit/coordinator/on_policy/test_plan_next_round.py::test_a_round_that_was_restored_near_its_"
                "end_counts_all_replicas"
            ),
        ),
    ),
    Mutant(
        name="the slow-down of streaming is measured beside loaned machines",
        target="rljob_runtime.coordinator.generation.engine_observer:EngineObserver.record_loan",
        before="self._loaned = True",
        after="pass",
        tests=("tests/unit/coordinator/stream_training/test_loans.py::test_engine_speed_during_loans_is_kept_apart",),
    ),
    Mutant(
        name="what a replica does not know of is waited for",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool._poll_forever",
        before="held + assigned",
        after="held",
        tests=(
            (
                "tests/unit/scheduling/fault_detection/test_stall_detection.py::test_a_replica_that_answers_and_"
                "makes_no_token_is_lost"
            ),
        ),
    ),
    Mutant(
        name="replicas are known by their names",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool.track",
        before="available.get(name) is not replica",
        after="name not in available",
        tests=(
            (
                "tests/unit/coordinator/fleet/test_membership.py::test_a_replica_lost_and_back_while_another_takes_"
                "its_time_is_noticed"
            ),
        ),
    ),
    Mutant(
        name="a failed reward counts as zero",
        target="rljob_runtime.coordinator.generation.scoring:RewardRequests._score",
        before="reward = failure_of(error)",
        after="reward = 0.0",
        tests=(
            f"{LOOP}::test_a_job_runs_to_its_end",
            f"{LOOP}::test_a_failed_reward_is_no_zero_and_is_tried_again",
        ),
    ),
    Mutant(
        name="a failed environment is told as a failed reward",
        target="rljob_runtime.coordinator.generation.scoring:failure_of",
        before="RewardFailure(ENVIRONMENT_FAILED, str(error), counts=error.counts)",
        after="RewardFailure(REWARD_FAILED, str(error), counts=error.counts)",
        tests=(
            "tests/unit/coordinator/episodes/test_job.py::test_groups_of_failing_environments_are_filtered_as_such",
        ),
    ),
    Mutant(
        name="a response that cannot be decoded is waited for",
        target="rljob_runtime.coordinator.generation.scoring:TextScorer._read",
        before='raise RewardFailed(f"its tokens cannot be decoded: {error!r}", by_response=True) from error',
        after="await asyncio.Event().wait()",
        tests=(
            (
                "tests/unit/coordinator/core/test_task_failures.py::test_a_response_that_cannot_be_decoded_is_an_"
                "aborted_sample"
            ),
        ),
    ),
    Mutant(
        name="a response that moves begins again",
        target="rljob_runtime.coordinator.generation.requests:Requests.of",
        before="prefix_token_ids=prefix",
        after="",
        tests=(
            (
                "tests/integration/coordinator/test_repack.py::test_a_response_that_moved_is_of_one_version_and_"
                "goes_on_where_it_was[Reference]"
            ),
        ),
    ),
    Mutant(
        name="a command is sent to a replica that takes KV, and times out there",
        target="rljob_runtime.coordinator.generation.replica_pool:ReplicaPool._afterwards",
        before="self._transfers[replica.name]",
        after="False",
        tests=(
            "tests/unit/coordinator/on_policy/test_kv_handover.py::test_a_round_goes_on_while_a_machine_takes_its_kv[tail1]",
        ),
    ),
)
