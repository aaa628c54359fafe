"""Mutants of rljob_runtime.data."""

from hack.mutants import Mutant

PROMPTS = "tests/unit/data/test_prompts.py"

MUTANTS = (
    Mutant(
        name="all prompts that were tokenised are kept",
        target="rljob_runtime.data.prompt_cache:PromptCache.__call__",
        before="self.bytes > self._most and len(self._kept) > 1",
        after="False",
        tests=(f"{PROMPTS}::test_prompts_in_memory_have_a_bound_in_bytes",),
    ),
    Mutant(
        name="good records far apart are taken for none",
        target="rljob_runtime.data.prompts:PromptSet.draw",
        before="2 * (len(self._source) - 1)",
        after="len(self._source)",
        tests=(f"{PROMPTS}::test_one_good_record_is_enough_wherever_an_epoch_has_it",),
        canary=True,
    ),
    Mutant(
        name="a Parquet file with another name is read as text",
        target="rljob_runtime.data.tables:format_of",
        before="return found",
        after="return Format.JSONL",
        tests=("tests/unit/data/test_tables.py",),
    ),
    Mutant(
        name="an answer of a JSON list loses its spelling",
        target="rljob_runtime.data.tables:_objects",
        before="fields.with_spelled_answer(row, as_written)",
        after="row",
        tests=("tests/unit/data/test_tables.py::test_a_number_keeps_the_spelling_of_the_file",),
    ),
    Mutant(
        name="a field inside of an object is not found",
        target="rljob_runtime.data.rows:value_at",
        before="value_at(inner, rest) if dot and isinstance(inner, Mapping) else None",
        after="None",
        tests=("tests/unit/data/test_tables.py::test_messages_and_nested_answers_are_read",),
    ),
    Mutant(
        name="prompts that are too long are not counted",
        target="rljob_runtime.data.errors:too_many",
        before="max(tokens)",
        after="min(tokens)",
        tests=("tests/unit/data/test_tables.py::test_prompts_that_are_too_long_are_counted_with_the_longest",),
    ),
)
