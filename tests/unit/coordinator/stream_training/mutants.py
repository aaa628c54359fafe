"""Mutants of rljob_runtime.coordinator.stream_training."""

from hack.mutants import Mutant

LOANED_WORKER = "tests/unit/coordinator/stream_training/test_loaned_worker.py"
LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

MUTANTS = (
    Mutant(
        name="a machine that is called back counts as slow",
        target="rljob_runtime.coordinator.stream_training.loaned_worker:LoanedWorker.take_groups",
        before="groups, self._groups, self._summed = self._groups, [], 0",
        after="self.record_slow(); groups, self._groups, self._summed = self._groups, [], 0",
        tests=(f"{LOANED_WORKER}::test_a_machine_that_is_called_back_was_not_slow",),
    ),
    Mutant(
        name="no machine is told that its loan is over",
        target="rljob_runtime.coordinator.stream_training.loaned_worker:LoanedWorker._end_loan",
        before="self._owner.run_in_background(self._machine.release_worker(self._term))",
        after="pass",
        tests=(f"{LOANED_WORKER}::test_the_end_of_a_loan_is_sent_and_not_awaited",),
        canary=True,
    ),
    Mutant(
        name="a worker computes before the engine slots have made room",
        target="rljob_runtime.coordinator.stream_training.loaned_worker:LoanedWorker.compute",
        before="await self._call(self._machine.sleep_engines(self._term))",
        after="pass",
        tests=(
            f"{LOANS}::test_all_replicas_of_a_loaned_machine_sleep_until_the_next_weights",
            f"{LOANED_WORKER}::test_to_make_room_and_to_come_back_is_part_of_its_first_computation",
        ),
    ),
    Mutant(
        name="why nothing is loaned is not told",
        target="rljob_runtime.coordinator.stream_training.loans:LoanManager.__init__",
        before=(
            "LoanDecision(rules if isinstance(rules, LoanOutcome) else LoanOutcome.OUTSIDE_WINDOW) if rules else None"
        ),
        after="None",
        tests=(f"{LOANS}::test_the_round_reports_why_nothing_is_loaned",),
    ),
    Mutant(
        name="the trainer alone is believed as slow as beside loaned machines",
        target="rljob_runtime.coordinator.stream_training.stream:Streaming._contribute_waiting",
        before="self._measured.with_loan if loaned or self.loaned else self._measured.training",
        after="self._measured.training",
        tests=(f"{LOANED_WORKER}::test_the_trainers_speed_during_loans_is_kept_apart",),
    ),
    Mutant(
        name="an idle loaned worker is lost without notice",
        target="rljob_runtime.coordinator.stream_training.stream:Streaming.start_loans",
        before='worker.watch(partial(self._end_loan, worker, "its machine left"))',
        after="pass",
        tests=(f"{LOANED_WORKER}::test_an_idle_workers_loss_returns_its_groups_to_the_others",),
    ),
    Mutant(
        name="sums are waited for for ever",
        target="rljob_runtime.coordinator.stream_training.stream:Streaming._send_sums",
        before="asyncio.timeout_at(until)",
        after="asyncio.timeout_at(None)",
        tests=(f"{LOANED_WORKER}::test_missing_sums_are_awaited_no_longer_than_the_trainer_needs",),
    ),
    Mutant(
        name="machines are loaned to a trainer that takes nothing",
        target="rljob_runtime.coordinator.stream_training.stream:Streaming.accepts_contributions",
        before="not self._broken and self._trainer.published_version == self._version",
        after="True",
        tests=(f"{LOANED_WORKER}::test_no_machine_is_loaned_whose_sums_the_trainer_refuses",),
    ),
    Mutant(
        name="the speed of the trainer is kept from a look",
        target="rljob_runtime.coordinator.stream_training.loans:LoanManager.training_token",
        before="self._measured.training.seconds",
        after="None",
        tests=(
            "tests/unit/coordinator/stream_training/test_stream.py::test_the_trainers_speed_counts_only_concurrently_with_generation",
        ),
    ),
    Mutant(
        name="a trainer bounds switches in a round that does not stream",
        target="rljob_runtime.coordinator.stream_training.loans:LoanManager.training_token",
        before="self.decision is not None",
        after="True",
        tests=(
            "tests/unit/coordinator/stream_training/test_stream.py::test_the_trainers_speed_counts_only_concurrently_with_generation",
        ),
    ),
    Mutant(
        name="a lost trainer bounds switches",
        target="rljob_runtime.coordinator.stream_training.loans:LoanManager.training_token",
        before="not self._streaming.broken",
        after="True",
        tests=(
            "tests/unit/coordinator/stream_training/test_stream.py::test_the_trainers_speed_counts_only_concurrently_with_generation",
        ),
    ),
    Mutant(
        name="a call under way has computed nothing",
        target="rljob_runtime.coordinator.stream_training.stream:Streaming.computed_tokens",
        before="self._computed_tokens + self._computed_by_call()",
        after="self._computed_tokens",
        tests=(
            "tests/unit/coordinator/stream_training/test_stream.py::test_tokens_of_a_call_under_way_count_as_its_time_passes",
        ),
    ),
    Mutant(
        name="responses that wait for their own machine keep others from a switch",
        target="rljob_runtime.coordinator.stream_training.round_snapshot:snapshot_round",
        before="key not in expected",
        after="True",
        tests=(
            "tests/unit/coordinator/on_policy/test_switcher.py::test_what_waits_for_a_switch_does_not_count_on_other_machines",
        ),
    ),
)
