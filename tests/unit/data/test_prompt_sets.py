"""Prompts of several sources: each has its own order and cursor, and keys tell them apart."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.word_problems import split
from rljob_api.spec.training import PromptFile
from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompt_sets import PromptSets
from rljob_runtime.data.records import read_file
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from rljob_runtime.scheduling.shares import Shares, allot


class InOrder:
    """A source of `size` prompts, drawn in their order."""

    stop_token_ids = (0,)
    skipped = 1
    skipped_records = (BadRecord(0, "line 1", "bad"),)

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        first = cursor.epoch * self._size + cursor.position
        keys = tuple(PromptKey(*divmod(place, self._size), self._name) for place in range(first, first + count))
        return keys, Cursor(*divmod(first + count, self._size))

    def prompt(self, key: PromptKey) -> Prompt:
        return Prompt(key.index, "a", (1,), source=self._name)

    def messages(self, key: PromptKey) -> tuple[dict[str, str], ...]:
        return ({"role": "user", "content": self._name},)

    def decode(self, token_ids: object) -> str:
        return "decoded"


SETS = PromptSets({"words": InOrder("words", 5), "sums": InOrder("sums", 3)})


@given(st.lists(st.tuples(st.sampled_from(["words", "sums"]), st.integers(0, 4)), max_size=12))
def test_each_source_is_drawn_once_an_epoch_whatever_the_others_do(draws: list[tuple[str, int]]) -> None:
    cursor, found = Cursor(), Counter[PromptKey]()
    for source, count in draws:
        keys, cursor = SETS.draw(cursor, count, source)
        assert {key.source for key in keys} <= {source}
        found.update(keys)
    assert cursor.position == sum(count for _, count in draws) == found.total()
    assert set(found.values()) <= {1}
    for source, size in (("words", 5), ("sums", 3)):
        drawn = sum(count for name, count in draws if name == source)
        assert cursor.of(source) == Cursor(*divmod(drawn, size))


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_job_that_goes_on_from_its_cursor_draws_what_it_would_have_drawn(first: int, more: int) -> None:
    shares = Shares.of({"words": 0.7, "sums": 0.3})

    def drawn(cursor: Cursor, count: int) -> tuple[list[PromptKey], Cursor]:
        names, cursor = allot(shares, cursor, count)
        found: list[PromptKey] = []
        for name in names:
            keys, cursor = SETS.draw(cursor, 1, name)
            found += keys
        return found, cursor

    begun, cursor = drawn(Cursor(), first)
    rest, after = drawn(cursor, more)
    assert (begun + rest, after) == drawn(Cursor(), first + more)


def test_prompts_are_found_by_the_source_of_their_key() -> None:
    assert SETS.prompt(PromptKey(0, 1, "sums")).source == "sums"
    assert SETS.messages(PromptKey(0, 1, "words")) == ({"role": "user", "content": "words"},)
    assert (SETS.skipped, len(SETS.skipped_records), SETS.decode([1])) == (2, 2, "decoded")
    with pytest.raises(DataError, match="there is no prompt source 'code'; the job has 'words', 'sums'"):
        SETS.prompt(PromptKey(0, 1, "code"))


@pytest.mark.parametrize("name", list(split()))
def test_the_word_problems_are_those_of_their_script(name: str) -> None:
    records = read_file(PromptFile(path=f"package://rljob/{name}", prompt_field="question"))
    assert [(records[index].text_or_messages, records[index].answer) for index in range(len(records))] == [
        (one["question"], one["answer"]) for one in split()[name]
    ]


def test_no_sum_of_the_test_is_in_training() -> None:
    train, test = ({one["answer"].partition(" has ")[2].split(" = ")[0] for one in each} for each in split().values())
    assert len(test) == 20
    assert not train & test
