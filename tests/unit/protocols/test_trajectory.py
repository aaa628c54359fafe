"""Keys of prompts and responses: their text, and their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey

NAMES = st.from_regex(r"\A(|([a-z]+:)?[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?)\Z")
PROMPTS = st.builds(PromptKey, st.integers(0, 2**31), st.integers(0, 2**31), NAMES)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (PromptKey(2, 17), "2.17"),
        (PromptKey(2, 17, "gsm8k"), "gsm8k/2.17"),
        (PromptKey(0, 3, "evaluation:held-out"), "evaluation:held-out/0.3"),
    ],
)
def test_text_names_the_source_where_there_is_one(prompt: PromptKey, text: str) -> None:
    assert str(prompt) == text
    assert PromptKey.parse(text) == prompt
    assert str(TrajectoryKey(prompt, 5)) == f"{text}.5"


@given(PROMPTS, st.integers(0, 2**31))
def test_text_is_read_back(prompt: PromptKey, sample: int) -> None:
    assert PromptKey.parse(str(prompt)) == prompt
    assert TrajectoryKey.parse(str(TrajectoryKey(prompt, sample))) == TrajectoryKey(prompt, sample)


@given(PROMPTS, PROMPTS)
def test_keys_of_all_sources_have_one_order(one: PromptKey, other: PromptKey) -> None:
    assert (one < other) + (one == other) + (one > other) == 1
    assert (str(one) == str(other)) == (one == other)
