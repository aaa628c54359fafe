"""Mutants of rljob_runtime.coordinator.reporting."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="groups of two different rewards count as equal",
        target="rljob_runtime.coordinator.reporting.group_metrics:with_group_metrics",
        before="len({scored.reward for scored in group.responses}) == 1",
        after="len({scored.reward for scored in group.responses}) <= 2",
        tests=("tests/unit/coordinator/reporting/test_group_metrics.py",),
    ),
    Mutant(
        name="a log that could not be written once is written no more",
        target="rljob_runtime.coordinator.reporting.round_log:RoundJournal._write",
        before="target.writer is None",
        after="target.writer is None and not target.lost",
        tests=(
            (
                "tests/unit/coordinator/reporting/test_round_log.py::test_a_full_disk_costs_lines_and_they_come_"
                "back_with_room"
            ),
        ),
    ),
)
