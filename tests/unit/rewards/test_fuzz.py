"""Whatever a model, a judge or a program writes has a value or a failure that is foreseen, soon."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards import builtin
from rljob_runtime.rewards.answers.arithmetic import TooLarge
from rljob_runtime.rewards.answers.final import Final, final_answer
from rljob_runtime.rewards.answers.readings import NoAnswer, read
from rljob_runtime.rewards.code_scorer import extract_program
from rljob_runtime.rewards.code_test_cases import Call, StandardStreams
from rljob_runtime.rewards.judge_scorer import _content, _Unanswered, parse_score
from rljob_runtime.rewards.rules import fill_template
from rljob_runtime.sandbox.program import End, Run
from tests.support.examples import examples
from tests.support.processor_time import within

BUDGET = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONGEST_SECONDS = 0.5
"""Of the processor, for all that is done with one text of some kilobytes."""
MARKS = [
    "```python\n",
    "```\n",
    "```",
    "\n",
    " ",
    "\\boxed{",
    "\\frac{1}{",
    "}",
    "{",
    "$",
    "\\(",
    "\\)",
    "\\[",
    "#### ",
]
WORDS = [
    "the answer is ",
    "答案是",
    "Score: ",
    "Score: 5",
    "<answer>",
    "</answer>",
    "{response}",
    "and",
    "to",
    "\\text{",
]
NUMBERS = [
    "1",
    "-",
    "−",
    ".",
    ",",
    "1e9",
    "9" * 400,
    "e",
    "^",
    "!",
    "/",
    "½",
    "３",
    "12:30",
    "50\\%",
    "_2",
    "5 cm",
    "x",
    "=",
]
ODD = ["\ud800", "\x00", "\u2028", "\r", "\t", "\\", '"', "[1, 2]", "NaN", "true", "\\cup", "\\pm", "(", "]", "%"]
PIECES = st.sampled_from([*MARKS, *WORDS, *NUMBERS, *ODD])
TEXTS = st.lists(PIECES | st.text(st.characters(exclude_categories=()), max_size=6), max_size=60).map("".join)
REPEATED = st.builds(lambda piece, times: piece * times, TEXTS.filter(lambda text: len(text) < 40), st.integers(1, 200))
RESPONSES = TEXTS | REPEATED
PROMPT = Prompt(0, "What is 2 + 3?", (1,), "5", {})


@BUDGET
@given(RESPONSES)
@example("{" * 5000)
@example("\\boxed{" * 3000)
@example("9" * 100_000)
def test_a_response_has_a_value(text: str) -> None:
    with within(LONGEST_SECONDS):
        assert builtin.last_number(PROMPT, text) in (0.0, 1.0)
        assert builtin.has_number(PROMPT, text) in (0.0, 1.0)
        found = [builtin._extract(text, how) for how in ("Whole", "LastNumber", "Tag", "Auto")]
        assert all(one is None or isinstance(one, str) for one in found)
        program = extract_program(text)
        assert program is None or program in text
        final = final_answer(text)
    if isinstance(final, Final):
        with within(LONGEST_SECONDS), suppress(NoAnswer, TooLarge):
            read(final.text)


@BUDGET
@given(
    RESPONSES,
    st.sampled_from(["{response}", "{question}{response}", "{answer} {response} {scale} {{}} {", "%s {response}"]),
)
def test_a_response_in_a_template_stays_as_it_is(text: str, template: str) -> None:
    assert text in fill_template(template, {"response": text, "question": "Q", "answer": "A", "scale": "10"})


@BUDGET
@given(RESPONSES, st.floats(0.001, 1000))
def test_a_reply_of_a_judge_is_a_share_or_no_answer(text: str, scale: float) -> None:
    with within(LONGEST_SECONDS), suppress(ValueError):
        assert 0 <= parse_score(text, scale) <= 1


REPLIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | RESPONSES,
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["choices", "message", "content", "x"]), inner, max_size=3),
    max_leaves=6,
)


@BUDGET
@given(
    REPLIES.map(lambda reply: json.dumps(reply).encode())
    | st.binary(max_size=60)
    | st.integers(1, 30_000).map(lambda n: b"[" * n)
)
def test_an_answer_of_a_judges_server_is_text_or_none(raw: bytes) -> None:
    with within(LONGEST_SECONDS), suppress(_Unanswered):
        assert isinstance(_content(raw), str)


TESTS = st.sampled_from(
    [
        StandardStreams("", "7\n"),
        StandardStreams("", "1.5 x\n\n2\n"),
        Call("f", (), 7),
        Call("f", (), [1.5, {"a": [True]}]),
        Call("f", (), [3], wrapped=True),
    ]
)


@BUDGET
@given(RESPONSES | REPLIES.map(json.dumps), TESTS)
@example("[" * 50_000, Call("f", (), 7))
@example("9" * 5000, Call("f", (), 7))
@example("1e999", Call("f", (), 1.5))
@example("1" + "0" * 400, Call("f", (), 1.5))
@example("1e999.0 " * 2000, StandardStreams("", "1.5 " * 2000))
def test_what_a_program_prints_is_right_or_wrong(printed: str, test: StandardStreams | Call) -> None:
    run = Run(End.EXITED, 0, printed, "", 0.1, 0.1)
    with within(LONGEST_SECONDS):
        assert test.passes(run) in (True, False)
