"""Mutants of rljob_runtime.protocols."""

from hack.mutants import Mutant

REPLICA = "tests/unit/rollout/test_replica.py"
EPISODE = "tests/unit/scheduling/episodes/test_episode.py"
RERUN = "tests/unit/scheduling/episodes/test_rerun.py"

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
    Mutant(
        name="the first of concurrent requests joins one that overtook it",
        target="rljob_runtime.protocols.turns:may_answer",
        before="made is not None and made.series == asked.series",
        after="False",
        tests=(
            f"{EPISODE}::test_the_first_of_concurrent_requests_may_come_last",
            "tests/unit/gateway/wire/test_repeats.py::test_a_client_whose_call_comes_last_has_its_own_answer",
        ),
    ),
    Mutant(
        name="a new gateway samples a lost answer again",
        target="rljob_runtime.protocols.turns:may_answer",
        before="asked.number == ((made.number if made else 0) if runs_again else 0)",
        after="False",
        tests=(f"{EPISODE}::test_the_first_request_of_a_series_gets_the_newest_turn_of_others",),
    ),
    Mutant(
        name="each request of a new gateway gets the turn of its number",
        target="rljob_runtime.protocols.turns:may_answer",
        before="(made.number if made else 0) if runs_again else 0",
        after="made.number if made else 0",
        tests=(f"{EPISODE}::test_the_first_request_of_a_series_gets_the_newest_turn_of_others",),
    ),
    Mutant(
        name="the first request of a program that runs again gets what another one repeated",
        target="rljob_runtime.protocols.turns:may_answer",
        before="(made.number if made else 0) if runs_again else 0",
        after="0",
        tests=(f"{RERUN}::test_retries_of_a_rerun_get_the_turns_that_their_requests_repeated",),
    ),
)
