"""Mutants of rljob_runtime.data."""

from hack.mutants import Mutant

TEMPLATES = "tests/unit/data/test_chat_template.py"
PROMPTS = "tests/unit/data/test_prompts.py"

ENVIRONMENTS = "tests/unit/data/test_environments.py"
HELD_OUT = "tests/unit/data/test_held_out.py"

MUTANTS = (
    Mutant(
        name="a record of an unknown environment is drawn",
        target="rljob_runtime.data.environments:or_unknown_environment",
        before="named in environments",
        after="True",
        tests=(f"{ENVIRONMENTS}::test_an_unknown_environment_is_a_bad_record_with_file_and_line",),
    ),
    Mutant(
        name="half a character is a record",
        target="rljob_runtime.data.records:_parse_line",
        before="_MAY_BE_HALF.search(raw) is not None",
        after="False",
        tests=(f"{PROMPTS}::test_a_bad_line_fails_with_its_place_or_is_skipped_and_counted",),
    ),
    Mutant(
        name="every record is of the first environment",
        target="rljob_runtime.data.environments:environment_of",
        before="prompt.metadata.get(FIELD) or environments[0]",
        after="environments[0]",
        tests=(f"{ENVIRONMENTS}::test_a_record_names_its_environment_or_has_the_first_one",),
    ),
    Mutant(
        name="all prompts that were tokenised are kept",
        target="rljob_runtime.data.prompt_cache:PromptCache._find",
        before="self.bytes > self._most and len(self._kept) > 1",
        after="False",
        tests=("tests/unit/data/test_prompt_cache.py::test_prompts_in_memory_have_a_bound_in_bytes",),
    ),
    Mutant(
        name="a source begins its epoch again after each draw",
        target="rljob_runtime.data.prompt_sets:PromptSets.draw",
        before="cursor.moved(source, after, count)",
        after="cursor.moved(source, cursor.of(source), count)",
        tests=("tests/unit/data/test_prompt_sets.py",),
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
        name="arguments do not reach the chat template",
        target="rljob_runtime.data.chat_template:ChatTemplate._apply",
        before='{"add_generation_prompt": True, **self._arguments, **given}',
        after='{"add_generation_prompt": True, **given}',
        tests=(f"{TEMPLATES}::test_arguments_reach_the_template",),
    ),
    Mutant(
        name="a misspelled argument of the chat template changes nothing",
        target="rljob_runtime.data.chat_template:ChatTemplate._check_arguments",
        before="self._arguments.keys() - used",
        after="()",
        tests=(f"{TEMPLATES}::test_an_unused_template_argument_is_refused_naming_the_used_ones",),
    ),
    Mutant(
        name="a chat template may drop the text of the system prompt",
        target="rljob_runtime.data.chat_template:ChatTemplate._check_system_prompt",
        before="text == without or system_prompt.strip() not in text",
        after="text == without",
        tests=(f"{TEMPLATES}::test_a_template_that_drops_the_system_prompt_is_refused",),
    ),
    Mutant(
        name="the model's chat template is used beside an own one",
        target="rljob_runtime.data.chat_template:ChatTemplate._apply",
        before="chat_template=self._source",
        after="chat_template=None",
        tests=(f"{TEMPLATES}::test_an_own_template_takes_the_place_of_the_models",),
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
    Mutant(
        name="training draws held-out records",
        target="rljob_runtime.data.prompts:PromptSet._may_be_drawn",
        before="self._held_out is None or index not in self._held_out",
        after="True",
        tests=(f"{HELD_OUT}::test_training_draws_every_good_record_but_the_held_out_ones",),
    ),
    Mutant(
        name="a split leaves training no record",
        target="rljob_runtime.data.held_out:HeldOut.__init__",
        before="min(size - 1, max(1, round(size * fraction)))",
        after="round(size * fraction)",
        tests=(f"{HELD_OUT}::test_a_split_has_its_fraction_and_leaves_both_parts_a_record",),
    ),
    Mutant(
        name="an evaluation's generator repeats training",
        target="rljob_runtime.data.job_prompts:_candidates",
        before="data.seed + EVALUATION_SEEDS",
        after="data.seed",
        tests=(f"{HELD_OUT}::test_a_generator_makes_other_prompts_for_an_evaluation",),
    ),
    Mutant(
        name="an evaluation overlaps unnoticed",
        target="rljob_runtime.data.evaluation_prompts:Overlap.watching.compare",
        before="self._met.add(found)",
        after="pass",
        tests=(f"{HELD_OUT}::test_prompts_that_training_has_too_are_counted",),
    ),
    Mutant(
        name="a missing column names the other field of the spec",
        target="rljob_runtime.data.rows:Fields.expect_in",
        before="('promptField', 'answerField')",
        after="('answerField', 'promptField')",
        tests=("tests/unit/data/test_tables.py::test_a_missing_column_is_told",),
    ),
)
