"""Mutants of rljob_runtime.protocols."""

from hack.mutants import Mutant

REPLICA = "tests/unit/rollout/test_replica.py"

MUTANTS = (
    Mutant(
        name="a replica follows a former coordinator",
        target="rljob_runtime.protocols.fencing:check_term",
        before="term < seen",
        after="False",
        tests=(
            f"{REPLICA}::test_an_older_term_is_refused_by_every_command",
            f"{REPLICA}::test_repeated_and_late_attempts_generate_nothing",
            f"{REPLICA}::test_a_load_that_the_relay_cannot_serve_keeps_the_old_version",
        ),
    ),
    Mutant(
        name="a worker that computes is taken for dead",
        target="rljob_runtime.protocols.remote:RemoteWorker.release",
        before="self._timeouts.release",
        after="self._timeouts.command",
        tests=(
            ("tests/unit/coordinator/stream_training/test_loaned_worker.py::test_a_release_waits_for_the_call_in_hand"),
        ),
    ),
    Mutant(
        name="a prompt is tried again with the numbers that made it long",
        target="rljob_runtime.protocols.trajectory:sample_seed",
        before='f"{run_seed}/{step}/{key}/{failures}/{offset}"',
        after='f"{run_seed}/{key}/{failures}/{offset}"',
        tests=(
            (
                "tests/unit/scheduling/test_tail_batching.py::test_a_prompt_that_lost_is_tried_again_with_other_"
                "random_numbers"
            ),
        ),
        canary=True,
    ),
)
