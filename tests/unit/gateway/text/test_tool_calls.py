"""Tool calls are found in text. What is none stays in the text, whatever a model writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rljob_runtime.gateway.text.tool_calls import CLOSE, OPEN, ParsedText, ToolCall, parse_tool_calls, write_tool_call
from tests.support.processor_time import within

SUM = '{"name": "sum", "arguments": {"a": 1, "b": [2]}}'
CALL = ToolCall("sum", '{"a": 1, "b": [2]}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no call", ParsedText("no call")),
        (" spaces stay ", ParsedText(" spaces stay ")),
        (f"{OPEN}\n{SUM}\n{CLOSE}", ParsedText("", (CALL,))),
        (f"I add. {OPEN}{SUM}{CLOSE}", ParsedText("I add.", (CALL,))),
        (f"{OPEN}{SUM}{CLOSE}\n{OPEN}{SUM}{CLOSE}", ParsedText("", (CALL, CALL))),
        (f'{OPEN}{{"name": "now"}}{CLOSE}', ParsedText("", (ToolCall("now", "{}"),))),
        (f'{OPEN}{{"name": "a", "arguments": "{{}}"}}{CLOSE}', ParsedText("", (ToolCall("a", "{}"),))),
        (f'{OPEN}{{"name": "ä", "arguments": {{"ö": 1}}}}{CLOSE}', ParsedText("", (ToolCall("ä", '{"ö": 1}'),))),
        (f"{OPEN}{SUM}", ParsedText(f"{OPEN}{SUM}", malformed=1)),
        (f"{OPEN}{SUM[:-1]}{CLOSE}", ParsedText(f"{OPEN}{SUM[:-1]}{CLOSE}", malformed=1)),
        (f'{OPEN}["sum"]{CLOSE}', ParsedText(f'{OPEN}["sum"]{CLOSE}', malformed=1)),
        (f'{OPEN}{{"name": 1}}{CLOSE}', ParsedText(f'{OPEN}{{"name": 1}}{CLOSE}', malformed=1)),
        (f'{OPEN}{{"name": ""}}{CLOSE}', ParsedText(f'{OPEN}{{"name": ""}}{CLOSE}', malformed=1)),
        (
            f'{OPEN}{{"name": "a", "arguments": [1]}}{CLOSE}',
            ParsedText(f'{OPEN}{{"name": "a", "arguments": [1]}}{CLOSE}', malformed=1),
        ),
        (
            f'{OPEN}{{"name": "a", "arguments": {{"x": NaN}}}}{CLOSE}',
            ParsedText(f'{OPEN}{{"name": "a", "arguments": {{"x": NaN}}}}{CLOSE}', malformed=1),
        ),
        (
            f'{OPEN}{{"name": "a", "arguments": {{"x": 1e999}}}}{CLOSE}',
            ParsedText(f'{OPEN}{{"name": "a", "arguments": {{"x": 1e999}}}}{CLOSE}', malformed=1),
        ),
        (
            f'{OPEN}{{"name": "a", "arguments": {{"x": "\\ud800"}}}}{CLOSE}',
            ParsedText(f'{OPEN}{{"name": "a", "arguments": {{"x": "\\ud800"}}}}{CLOSE}', malformed=1),
        ),
        (f"{OPEN}{OPEN}{SUM}{CLOSE}", ParsedText(f"{OPEN}{OPEN}{SUM}{CLOSE}", malformed=1)),
        (f"{CLOSE}{OPEN}{SUM}{CLOSE}", ParsedText(CLOSE, (CALL,))),
        (
            f"{OPEN}{'[' * 100_000}{CLOSE}",
            ParsedText(f"{OPEN}{'[' * 100_000}{CLOSE}", malformed=1),
        ),
    ],
)  # fmt: skip
def test_calls_of_a_text(text: str, expected: ParsedText) -> None:
    assert parse_tool_calls(text) == expected


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(codec="utf-8"))),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(st.characters(codec="utf-8")), inner)),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(st.characters(codec="utf-8")), json_values)


@given(st.text(st.characters(codec="utf-8"), min_size=1), arguments)
def test_a_written_call_is_found_again(name: str, given: dict[str, object]) -> None:
    written = write_tool_call(name, given)
    assume(CLOSE not in json.dumps([name, given]))  # a text that closes its own block is none, in any model's hands
    (call,) = parse_tool_calls(written).calls
    assert call.name == name
    assert json.loads(call.arguments) == given


@given(st.lists(st.sampled_from([OPEN, CLOSE, SUM, "{", "}", '"', "x", "\n", " "]), max_size=12).map("".join))
def test_any_text_is_parsed_and_without_a_call_it_stays(text: str) -> None:
    parsed = parse_tool_calls(text)
    if not parsed.calls:
        assert parsed.content == text
    for call in parsed.calls:
        assert isinstance(json.loads(call.arguments), dict)


def test_blocks_that_never_end_are_read_once() -> None:
    with within(1):
        assert parse_tool_calls(OPEN * 100_000).malformed == 1
