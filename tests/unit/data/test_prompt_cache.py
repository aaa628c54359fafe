"""Prompts in memory: what they take, and the bound on it."""

from __future__ import annotations

import tracemalloc

from rljob_api.spec.training import DataSpec
from rljob_runtime.data import PromptSet
from rljob_runtime.data.prompt_cache import PromptCache, bytes_of
from rljob_runtime.data.prompts import PromptRules
from rljob_runtime.data.rows import Record
from rljob_runtime.protocols.trajectory import PromptKey

SPEC = {"prompts": {"file": {"path": "/x"}}, "chat_template": False}


class Numbered:
    """Records that the source does not keep, as those of a generator."""

    name, checked_ahead = "numbered", True

    def __init__(self, count: int, text: str = "2+2") -> None:
        self.asked: list[int] = []
        self._count, self._text = count, text

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Record:
        self.asked.append(index)
        return Record(index, f"record {index}", f"{self._text}{index}", str(index), {"tests": [f"{self._text}{index}"]})


class Counting:
    """A tokenizer of a large vocabulary: no two ids are the same object."""

    chat_template = None

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1000 + len(text) + place for place in range(self._tokens)]}


def test_a_prompt_takes_little_more_memory_than_its_tokens():
    tokens, count = 1000, 500
    data = DataSpec.model_validate({**SPEC, "max_prompt_tokens": tokens})
    tracemalloc.start()
    try:
        prompts = PromptSet(Numbered(count), PromptRules(data, Counting(tokens)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(prompts.prompt(PromptKey(0, 3)).token_ids)[:2] == [1004, 1005]
    assert 4 * tokens * count < kept < 1.5 * 4 * tokens * count


def test_prompts_in_memory_have_a_bound_in_bytes():
    source = Numbered(100, text="x" * 1000)
    data = DataSpec.model_validate(SPEC)
    whole = PromptSet(source, PromptRules(data, Counting(10)))
    one = bytes_of(whole.prompt(PromptKey(0, 0)))
    assert one > 2000 + 40, "the text and the tests of a record that the source does not keep are counted"
    source.asked.clear()
    memory = PromptCache(most=3 * one + one // 2)
    for index in (0, 1, 2, 0, 3, 0, 1):
        assert memory.find("", index, whole._prepare).index == index
        assert memory.bytes <= 3 * one + one // 2
    assert source.asked == [0, 1, 2, 3, 1], "the least recently used goes first"
    assert PromptCache(most=1).find("", 7, whole._prepare).index == 7, "one is always kept"
