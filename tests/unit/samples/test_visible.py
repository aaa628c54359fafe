"""A terminal shows a model's text and never executes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.samples.visible import visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\r", "␍"),
        ("\x9b2J", "<U+009B>2J"),
        ("abc\u202edef", "abc<U+202E>def"),
        ("\ud800", "<U+D800>"),
        ("ключ 鍵 🔑", "ключ 鍵 🔑"),
    ],
)
def test_what_is_shown(text, expected):
    assert visible(text) == expected


@given(st.text())
def test_no_control_character_is_left(text):
    shown = visible(text)
    assert all(one in "\n\t" or (ord(one) >= 0x20 and not 0x7F <= ord(one) <= 0x9F) for one in shown)
