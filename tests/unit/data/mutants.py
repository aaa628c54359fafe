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
)
