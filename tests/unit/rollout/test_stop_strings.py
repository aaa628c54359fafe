"""A response ends at the token that completes a stop string, however the string is spread over tokens and moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import StepOutput
from rljob_runtime.rollout.stop_strings import StopStrings

PIECES = [
    b"",
    b"a",
    b"b",
    b"ab",
    b" a",
    b"\n",
    b"\n\n",
    b"</",
    b"answer",
    b">",
    b"b</",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
]
"""Tokens by their number: text, parts of characters, and a special token, whose text is not decoded."""


class Text:
    """A byte-level tokenizer. It drops the space before the first token, as some do."""

    decoded = 0

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded += 1
        return b"".join(PIECES[token] for token in token_ids).decode(errors="replace").removeprefix(" ")


def tokens(text: str) -> list[int]:
    """The pieces of a text, separated by |."""
    return [PIECES.index(piece.encode()) for piece in text.split("|")]


def output(token_ids: Sequence[int], finish: FinishReason | None = None) -> StepOutput:
    return StepOutput("r", tuple(token_ids), tuple(-float(i) for i in range(len(token_ids))), finish)


def generated(strings: Sequence[str], prefix: Sequence[int], steps: Sequence[Sequence[int]]) -> tuple[list[int], bool]:
    """What a response has after these steps of an engine, and whether a string ended it."""
    stops, got = StopStrings(Text), []
    stops.start("r", strings, prefix)
    for step in steps:
        (cut,), ended = stops.cut([output(step)])
        assert len(cut.logprobs) == len(cut.token_ids)
        assert ended == (["r"] if cut.finish_reason else [])
        got += cut.token_ids
        if cut.finish_reason is not None:
            assert cut.finish_reason is FinishReason.STOP
            return got, True
    return got, False


CASES = [
    # strings, prefix, tokens, tokens kept (None: all)
    (["answer"], "", "a|answer|b", 2),
    (["</answer>"], "", "b|</|answer|>|a", 4),
    (["</answer>"], "a|</", "answer|>|a", 2),
    (["</answer>"], "a|</|answer", ">|a", 1),
    (["</answer>"], "", "b</|answer|>", 3),
    (["\n\n"], "", "a|\n|a|\n|\n|a", 5),
    (["\n\n"], "a|\n", "\n|a", 1),
    (["ab"], "", "b|a||b|a", 4),  # a special token between them is not in the text
    (["ab", "b"], "", "a|b", 2),
    (["b", "ab"], "", "a|a|ab", 3),
    ([" "], "", "a| a|b", 2),
    ([" "], "", " a|b| a", 3),  # not the one that the decoder drops
    (["</"], "", "a|b</|a", 2),
    (["nsw"], "", "a|answer|b", 2),  # the token goes on after the string, and is kept
    (["x"], "", "a|b|ab", None),
    (["ab"], "ab", "b|a|a", None),  # completed before the move: it did not end the response
    (["ab"], "ab", "b|a|b|a", 3),
    ([], "", "a|b", None),
]


@pytest.mark.parametrize(("strings", "prefix", "new", "kept"), CASES)
def test_the_last_token_is_the_one_that_completes_a_string(
    strings: list[str], prefix: str, new: str, kept: int | None
) -> None:
    before, steps = tokens(prefix) if prefix else [], [[token] for token in tokens(new)]
    expected = tokens(new)[:kept]
    assert generated(strings, before, steps) == (expected, kept is not None)
    assert generated(strings, before, [tokens(new)]) == (expected, kept is not None), "in one step"


def test_special_tokens_take_no_place_in_the_window() -> None:
    spread = tokens("a|" + "|" * 40 + "b")
    assert generated(["ab"], [], [spread]) == (spread, True)
    assert generated(["ab"], spread[:30], [spread[30:]]) == (spread[30:], True)


def test_a_string_may_end_in_the_middle_of_characters() -> None:
    accent = [PIECES.index(b"a"), PIECES.index(b"\xc3"), PIECES.index(b"\xa9"), PIECES.index(b"b")]
    assert generated(["aé"], [], [[token] for token in accent]) == (accent[:3], True)
    assert generated(["aé"], accent[:2], [[token] for token in accent[2:]]) == (accent[2:3], True)


@given(
    st.lists(st.text("ab</\n é", min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(st.integers(0, len(PIECES) - 1), max_size=40),
    st.integers(0, 40),
    st.lists(st.integers(1, 4), min_size=40, max_size=40),
)
def test_it_is_what_decoding_everything_again_finds(
    strings: list[str], response: list[int], moved_at: int, sizes: list[int]
) -> None:
    text = Text()
    completed = [any(string in text.decode(response[:n]) for string in strings) for n in range(len(response) + 1)]
    end = completed.index(True) if True in completed else None
    start = min(moved_at, len(response) if end is None else end - 1)
    steps, rest = [], response[start:]
    for size in sizes:
        steps, rest = [*steps, rest[:size]], rest[size:]
    assert generated(strings, response[:start], [step for step in steps if step]) == (
        response[start:end],
        end is not None,
    )


def test_the_limit_at_the_same_token_is_a_stop() -> None:
    stops = StopStrings(Text)
    stops.start("r", ["ab"], [])
    (cut,), ended = stops.cut([output(tokens("a|b"), FinishReason.LENGTH)])
    assert (cut.finish_reason, ended) == (FinishReason.STOP, []), "and the engine has nothing left to abort"


def test_ended_and_aborted_requests_are_no_longer_watched() -> None:
    stops = StopStrings(Text)
    for ends in (lambda: stops.forget(["r", "unknown"]), lambda: stops.cut([output(tokens("a"), FinishReason.LENGTH)])):
        stops.start("r", ["ab"], [])
        ends()
        assert stops.cut([output(tokens("ab"))]) == ([output(tokens("ab"))], [])


def test_a_tokenizer_is_opened_for_stop_strings_only() -> None:
    def never() -> Text:
        raise AssertionError("no request has stop strings")

    stops = StopStrings(never)
    stops.start("r", [], tokens("a"))
    assert stops.cut([output(tokens("ab"))])[1] == []


def test_tokens_that_cannot_end_a_string_are_not_decoded() -> None:
    text = Text()
    stops = StopStrings(lambda: text)
    stops.start("r", ["</answer>"], [])
    stops.cut([output(tokens("a|b"))])
    before = text.decoded
    stops.cut([output(tokens("a|b|a|b|b"))])
    assert text.decoded == before
