"""Mutants of rljob_runtime.coordinator.samples."""

from hack.mutants import Mutant

EVALUATED = "tests/unit/coordinator/evaluation/test_samples.py"

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
    Mutant(
        name="files that the end does not wait for are no warning",
        target="rljob_runtime.coordinator.samples.writer:SampleWriter.finish",
        before="max(1, self._unwritten + self._waiting + self._evaluations - self._taken)",
        after="0",
        tests=(
            "tests/unit/coordinator/samples/test_writer.py::test_what_a_volume_does_not_take_at_the_jobs_end_is_counted",
        ),
    ),
    Mutant(
        name="the thread of texts has no turn for rewards before all samples are read",
        target="rljob_runtime.coordinator.samples.writer:parts",
        before="part and tokens > DECODED_BATCH",
        after="False",
        tests=(
            "tests/unit/coordinator/samples/test_writer.py::test_long_responses_leave_the_thread_of_texts_to_others_in_between",
        ),
    ),
    Mutant(
        name="files of abandoned evaluations stay",
        target="rljob_runtime.coordinator.samples.writer:SampleWriter._delete_abandoned",
        before="not self._abandoned_may_exist",
        after="self._abandoned_may_exist",
        tests=(f"{EVALUATED}::test_files_of_an_abandoned_history_go_when_training_continues",),
    ),
    Mutant(
        name="a rewind leaves the files of abandoned evaluations",
        target="rljob_runtime.coordinator.samples.writer:SampleWriter.round_closed",
        before="self._newest is None or report.round <= self._newest",
        after="self._newest is None",
        tests=(f"{EVALUATED}::test_files_of_an_abandoned_history_go_after_a_rewind",),
    ),
)
