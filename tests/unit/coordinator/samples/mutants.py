"""Mutants of rljob_runtime.coordinator.samples."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="lengths of an abandoned round stay",
        target="rljob_runtime.coordinator.samples.length_writer:unwritten",
        before="{step for step in written if first is None or step < first}",
        after="set(written)",
        tests=("tests/unit/coordinator/samples/test_length_writer.py",),
    ),
    Mutant(
        name="a new coordinator believes the newest file of lengths",
        target="rljob_runtime.coordinator.samples.length_writer:unwritten",
        before="resumes",
        after="False",
        tests=(
            "tests/unit/coordinator/samples/test_length_writer.py::test_a_kill_between_count_and_file_loses_no_lengths",
        ),
    ),
)
