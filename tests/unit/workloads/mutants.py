"""Mutants of rljob_runtime.workloads."""

from hack.mutants import Mutant

GENERATOR = "tests/unit/workloads/test_generator.py"
READERS = "tests/unit/workloads/test_readers.py"

MUTANTS = (
    Mutant(
        name="bad rows are always skipped",
        target="rljob_runtime.workloads.errors:Findings.refuse",
        before="not self.skip_bad",
        after="self.skip_bad is None",
        tests=(f"{READERS}::test_bad_lengths",),
    ),
    Mutant(
        name="more responses change the first ones",
        target="rljob_runtime.workloads.generator:Generator.prompt",
        before="of_responses.standard_normal((responses, self._scores))",
        after="of_responses.standard_normal((self._scores, responses)).T",
        tests=(f"{GENERATOR}::test_more_responses_keep_the_first",),
        canary=True,
    ),
    Mutant(
        name="a prompt launched again repeats its responses",
        target="rljob_runtime.workloads.generator:Generator.prompt",
        before="1 + attempt",
        after="1",
        tests=(f"{GENERATOR}::test_another_attempt_is_the_same_prompt_with_new_responses",),
    ),
    Mutant(
        name="a replay draws a response twice before all were drawn",
        target="rljob_runtime.workloads.replay:Replay.prompt",
        before="random.permutation(len(prompt.responses))",
        after="random.integers(len(prompt.responses), size=len(prompt.responses))",
        tests=(f"{GENERATOR}::test_replay_of_the_recorded_size_is_the_recorded_step",),
    ),
    Mutant(
        name="a filter's indices count validation rows",
        target="rljob_runtime.workloads.trace:_read_lengths",
        before="Prompt(rows(), row.input, responses)",
        after="Prompt(line - 1, row.input, responses)",
        tests=(f"{READERS}::test_filter_counts_neither_blank_lines_nor_validation_rows",),
    ),
)
