"""Mutants of rljob_runtime.coordinator.generation."""

from hack.mutants import Mutant

LOOP = "tests/unit/coordinator/on_policy/test_loop.py"

MUTANTS = (
    Mutant(
        name="replicas are those that had something to do",
        target="rljob_runtime.coordinator.generation.engine_observer:EngineObserver.record_submitted",
        before="max(self._replicas, replicas)",
        after="max(self._replicas, len(requests))",
        tests=(
            (
                "tests/unit/coordinator/on_policy/test_plan_next_round.py::test_a_round_that_was_taken_up_near_its_"
                "end_counts_all_replicas"
            ),
        ),
    ),
    Mutant(
        name="the slow-down of streaming is measured beside lent machines",
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
        before="None, isinstance(error, RewardFailed) and error.by_response",
        after="0.0, isinstance(error, RewardFailed) and error.by_response",
        tests=(
            f"{LOOP}::test_a_job_runs_to_its_end",
            f"{LOOP}::test_a_failed_reward_is_no_zero_and_is_tried_again",
        ),
    ),
    Mutant(
        name="a response that cannot be decoded is waited for",
        target="rljob_runtime.coordinator.generation.scoring:RewardRequests._score",
        before="self._post(RewardReceived(response, None, by_response=True))",
        after="",
        tests=(
            (
                "tests/unit/coordinator/core/test_task_failures.py::test_a_response_that_cannot_be_decoded_is_an_"
                "aborted_sample"
            ),
        ),
    ),
)
