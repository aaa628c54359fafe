"""Mutants of rljob_runtime.training.loans."""

from hack.mutants import Mutant

WORKER = "tests/unit/training/loans/test_worker.py"

MUTANTS = (
    Mutant(
        name="sums of other weights are taken",
        target="rljob_runtime.training.loans.accept:check_fence",
        before="published != (receipt.version, done)",
        after="published is None",
        tests=(f"{WORKER}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        name="a loan that is over is waited for",
        target="rljob_runtime.training.loans.worker:BlockingGradientWorker.releasing",
        before="ranks.processes.interrupt()",
        after="pass",
        tests=(f"{WORKER}::test_a_release_does_not_wait_for_a_computation",),
    ),
    Mutant(
        name="an accelerator that dies takes its machine with it",
        target="rljob_runtime.training.loans.worker:BlockingGradientWorker._void",
        before='return Refused(f"{self.name} has lost its sums: {reason}")',
        after="from rljob_runtime.protocols import PeerGone; return PeerGone(str(reason))",
        tests=(
            (
                "tests/unit/training/loans/test_whole_loan.py::test_an_accelerator_that_dies_in_the_middle_costs_"
                "its_machines_share"
            ),
        ),
    ),
    Mutant(
        name="what a unit was about to send stays in shared memory",
        target="rljob_runtime.training.loans.worker:_Ranks.end",
        before="discard(self._settings.sender.folder)",
        after="pass",
        tests=(f"{WORKER}::test_a_worker_that_dies_half_way_leaves_the_update_exact",),
    ),
    Mutant(
        name="a worker computes with stale weights",
        target="rljob_runtime.training.loans.worker_rank:GradientRank.begin",
        before="self._version != version",
        after="self._version is None",
        tests=(f"{WORKER}::test_a_worker_computes_with_the_version_it_is_told",),
    ),
    Mutant(
        name="what a layer's gradient came to is added twice",
        target="rljob_runtime.training.loans.worker_rank:_GradientAccumulator._accumulate_on_backward.accumulate",
        before="parameter.grad = None",
        after="",
        tests=(f"{WORKER}::test_the_update_is_that_of_the_trainer_alone",),
    ),
    Mutant(
        name="a rank reads the slices of the first",
        target="rljob_runtime.training.loans.worker_rank:GradientRank._read",
        before="slices[self._ranks.rank] if self._ranks.rank < len(slices) else full[:0]",
        after="slices[0][: _local_shard(parameter).shape[0]]",
        tests=(f"{WORKER}::test_the_update_is_that_of_the_trainer_alone",),
    ),
)
