"""Mutants of rljob_runtime.coordinator.core."""

from hack.mutants import Mutant

LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

MUTANTS = (
    Mutant(
        name="a task of a stage ends unheard",
        target="rljob_runtime.coordinator.core.async_utils:StageTasks._ended",
        before="self._post(Broken(error))",
        after="pass",
        tests=("tests/unit/coordinator/core/test_task_failures.py::test_stage_tasks_tell_of_errors_alone",),
    ),
    Mutant(
        name="Auto lends nothing",
        target="rljob_runtime.coordinator.core.settings:lending_rules",
        before="not any(plan.stream for plan in _choices(spec).plans)",
        after="stream.enabled is not True",
        tests=(f"{LOANS}::test_machines_are_loaned_where_rounds_may_stream",),
    ),
    Mutant(
        name="a loaned machine is believed to have one accelerator",
        target="rljob_runtime.coordinator.core.settings:Settings.of",
        before="spec.trainer.ranks / max(1, spec.rollout.accelerators_per_machine)",
        after="spec.trainer.ranks",
        tests=(f"{LOANS}::test_an_unmeasured_machine_counts_by_its_accelerators",),
    ),
)
