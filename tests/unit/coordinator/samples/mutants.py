"""Mutants of rljob_runtime.coordinator.samples."""

from hack.mutants import Mutant

EVALUATED = "tests/unit/coordinator/evaluation/test_samples.py"
ROUTE = "tests/unit/entrypoints/test_episode_route.py"

MUTANTS = (
    Mutant(
        name="an answer has all attempts of the store",
        target="rljob_runtime.coordinator.samples.attempt_lines:AttemptLines.after",
        before="text and len(text) + len(line) > most",
        after="False",
        tests=(f"{ROUTE}::test_a_client_reads_what_a_copy_of_the_store_says",),
    ),
    Mutant(
        name="a reader of attempts has a store that is closed",
        target="rljob_runtime.coordinator.samples.attempt_lines:AttemptLines.reading",
        before="self._store = None",
        after="pass",
        tests=(f"{ROUTE}::test_without_an_open_store_a_client_is_told_to_try_again",),
    ),
    Mutant(
        name="the store's thread reads an answer in one call",
        target="rljob_runtime.coordinator.samples.attempt_rows:part",
        before="found and (left < 0 or len(found) == PART_ROWS)",
        after="False",
        tests=(f"{ROUTE}::test_the_stores_work_runs_between_parts",),
    ),
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
