"""Rewards of kind Code: what is taken for the program, which tests are understood, and what each outcome is worth."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.rewards import CodeReward, CodeScore, RewardTimeout
from rljob_api.spec.training import PromptFile
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.records import read_file
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.rewards import CannotSandbox, CodeRule, RewardPool, Rule
from rljob_runtime.rewards.code_scorer import CodeScorer, extract_program
from rljob_runtime.rewards.code_test_cases import InvalidTests, parse_tests
from rljob_runtime.rewards.errors import Failure, ScoreFailed
from rljob_runtime.rewards.rules import InvalidReward
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from tests.support.processor_time import growth
from tests.support.rows import slow

ADD = [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 -5\n", "stdout": "0\n"}]


def prompt(tests: Any, index: int = 0, **fields: Any) -> Prompt:
    return Prompt(index, "Write it.", (1,), "", {"tests": tests, **fields})


def fenced(source: str, language: str = "python") -> str:
    return f"Here it is:\n```{language}\n{source}\n```\nDone."


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("no code", None),
        ("", None),
        (fenced("a = 1"), "a = 1\n"),
        (fenced("a = 1", ""), "a = 1\n"),
        (fenced("a = 1", "Python"), "a = 1\n"),
        (fenced("a = 1", "py"), "a = 1\n"),
        (fenced("first") + fenced("second"), "second\n"),
        (fenced("a = 1") + fenced("$ python a.py", "bash"), "a = 1\n"),
        (fenced("int main() {}", "cpp"), None),
        ("```python\ncut off", None),
        (fenced("whole") + "```python\ncut off", "whole\n"),
        ("```python\n```", ""),
        ("```python\r\na = 1\r\n```\r\nDone.", "a = 1\r\n"),
        ("<think>\n```python\ndraft\n```\n</think>\n" + fenced("x = '''\n``\n'''"), "x = '''\n``\n'''\n"),
    ],
)
def test_the_program_is_the_last_whole_block(response: str, program: str | None) -> None:
    assert extract_program(response) == program


BLOCK = re.compile(r"^```[ \t]*(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
"""What a block is, as a pattern. It is right, and slow: an opened block is searched to the end of the text."""


@given(st.lists(st.sampled_from(["```", "```python", "``` py x", "```c", "x", " ```", "`", "\n", "\n", "\n", " "])))
def test_one_pass_finds_what_the_pattern_finds(pieces: list[str]) -> None:
    response = "".join(pieces)
    blocks = [body for language, body in BLOCK.findall(response) if language in ("", "python", "py")]
    assert extract_program(response) == (blocks[-1] if blocks else None)


@pytest.mark.parametrize(
    "piece", ["```python\n", "`", "```", "```\n```python\n", *slow("```\n", "```py\nx = 1\n", " \n")]
)
def test_no_text_costs_more_than_its_length(piece: str) -> None:
    """A pattern needed 15 s for 3,000 of the first kind, and grew with their square: 64 times as much, not once."""

    def often() -> None:
        for _ in range(64):
            extract_program(piece * 1_000)

    assert growth(often, lambda: extract_program(piece * 64_000)) < 16


async def test_a_program_can_be_a_text_with_the_response_in_it() -> None:
    settings = CodeReward(program="{question}{response}", parallelism=1)
    header = "import sys\ndef add(a, b):\n    "
    tests = [{"function": "add", "arguments": [3, 4], "returns": 7}]
    completed = Prompt(0, header, (1,), "", {"tests": tests})
    async with RewardPool([CodeRule("code", settings=settings)]) as pool:
        assert await pool.score(completed, "return a + b") == 1.0
        assert await pool.score(completed, "return a - b") == 0.0
        assert await pool.score(completed, "return '{question}'") == 0.0, "filled in once"
        assert pool.figures().programs == {"Exited": 3}


BAD_TESTS = [
    (None, r"field 'tests' is None; a list with at least one test would be right"),
    ([], r"a list with at least one test"),
    ("[", r"field 'tests' is no JSON"),
    ("7", r"is 7; a list"),
    ([7], r"tests\[0\] is 7; an object with stdin and stdout"),
    ([*ADD, {"stdin": "1"}], r"tests\[2\] is {'stdin': '1'}; an object"),
    ([{"stdin": 1, "stdout": "1"}], r"tests\[0\] is "),
    ([{"function": "f", "arguments": {"a": 1}, "returns": 1}], r"tests\[0\] is "),
    ({"inputs": ["1"], "outputs": []}, r"lists inputs and outputs of the same length"),
    ({"inputs": [], "outputs": []}, r"a list with at least one test"),
    ({"inputs": ["1", 7], "outputs": ["1", "7"]}, r"tests\.inputs\[1\] is 7; a text, or a list of its lines"),
    ({"inputs": ["1"], "outputs": [["1", 2]]}, r"tests\.outputs\[0\] is \['1', 2\]; a text, or a list of its lines"),
    ({"inputs": [[1], 2], "outputs": [1, 2], "fn_name": "f"}, r"tests\.inputs\[1\] is 2; the list of the function's"),
    ({"inputs": [[1]], "outputs": [1], "fn_name": ""}, r"tests\.fn_name is ''; the name of a function"),
]


@pytest.mark.parametrize(("tests", "message"), BAD_TESTS)
def test_tests_that_cannot_be_used(tests: Any, message: str) -> None:
    with pytest.raises(InvalidTests, match=message):
        parse_tests("tests", None, {"tests": tests})


def test_tests_may_be_the_answer_or_a_text() -> None:
    assert len(parse_tests("tests", json.dumps(ADD), {})) == 2
    assert len(parse_tests("cases", "4", {"cases": json.dumps(ADD)})) == 2
    assert parse_tests("tests", "", {"tests": {"inputs": ["1 2\n"], "outputs": ["3\n"]}}) == parse_tests(
        "tests", ADD[:1], {}
    )
    (call,) = parse_tests("tests", "", {"tests": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}})
    assert call == parse_tests("tests", [{"function": "add", "arguments": [1, 2], "returns": 3}], {})[0]


@pytest.mark.parametrize(
    ("outputs", "returned", "passes"),
    [
        ([[56]], "56", True),  # APPS: the value in a list
        ([[56]], "[56]", True),  # or a function that returns a list of one
        ([[56]], "55", False),
        ([[56]], "[56, 56]", False),
        ([[56]], "[[56]]", False),
        ([[[1, 2]]], "[1, 2]", True),
        ([[[1, 2]]], "1", False),
        ([[1, 2]], "1", False),  # APPS's grader takes the first of any list
        ([[1], [1, 2]], "1", False),  # the second output shows that lists are what is returned
        ([[1], [1, 2]], "[1]", True),
        ([[1], []], "1", False),
        ([[1], 2], "1", False),
        ([[True]], "1", False),
        ([[None]], "null", True),
        ([[]], "[]", True),
    ],
)
def test_a_column_may_have_what_is_returned_in_a_list(outputs: list[Any], returned: str, passes: bool) -> None:
    columns = {"fn_name": "f", "inputs": [[1]] * len(outputs), "outputs": outputs}
    first = parse_tests("tests", "", {"tests": columns})[0]
    assert first.passes(Run(End.EXITED, 0, returned, "", 0, 0)) is passes


def test_a_test_by_itself_says_what_is_returned() -> None:
    (call,) = parse_tests("tests", [{"function": "f", "arguments": [1], "returns": [56]}], {})
    assert call.passes(Run(End.EXITED, 0, "[56]", "", 0, 0))
    assert not call.passes(Run(End.EXITED, 0, "56", "", 0, 0))


def test_a_column_may_have_texts_as_lists_of_lines() -> None:
    columns = {
        "inputs": [["3", "4"], ["3\n", "4\n"], ["3\n4"], []],
        "outputs": [["7", "8"], "7\n8", ["7\n8\n"], "7\n8\n\n"],
    }
    tests = parse_tests("tests", "", {"tests": columns})
    assert [test.script("")[1] for test in tests] == ["3\n4\n", "3\n4\n", "3\n4\n", ""]
    assert all(test.passes(Run(End.EXITED, 0, "7\n8", "", 0, 0)) for test in tests)


@pytest.mark.parametrize(
    ("expected", "printed", "passes"),
    [
        ("  *\n ***\n", "*\n***\n", True),
        (" 1  2 \n3\n\n", "1 2\n3", True),
        ("1 2\n3\n", "1 2 3\n", False),
        ("12\n", "1 2\n", False),
        ("1\n\n2\n", "1\n2\n", False),
        ("Yes\n", "YES\n", False),
        ("x = 0.50\n", "x  =  0.5\n", True),
        ("x=0.50\n", "x=0.5\n", False),
    ],
)
def test_lines_are_compared_by_their_tokens(expected: str, printed: str, passes: bool) -> None:
    (test,) = parse_tests("tests", [{"stdin": "", "stdout": expected}], {})
    assert test.passes(Run(End.EXITED, 0, printed, "", 0, 0)) is passes


CALLS = {"function": "f", "arguments": [[3, 1, 2], 2], "returns": [1, 2]}
WORTH: list[tuple[str, Any, str, float]] = [
    ("prints the sum", ADD, "a, b = map(int, input().split())\nprint(a + b)", 1),
    ("prints with other white space", ADD, "a, b = map(int, input().split())\nprint(a + b, ' \\n')", 1),
    ("prints more", ADD, "a, b = map(int, input().split())\nprint(a + b)\nprint('done')", 0),
    ("prints nothing and ends well", ADD, "", 0),
    ("prints right, then crashes", ADD, "a, b = map(int, input().split())\nprint(a + b)\n1 / 0", 0),
    ("is no Python", ADD, "int main() { }", 0),
    ("passes one of two", ADD, "print(3)", 0),
    ("prints a close number", [{"stdin": "", "stdout": "0.333333333"}], "print(1 / 3)", 1),
    ("prints a number that is not close", [{"stdin": "", "stdout": "0.333333333"}], "print(0.3334)", 0),
    ("prints a whole number that is close", [{"stdin": "", "stdout": "10000000"}], "print(10000001)", 0),
    ("prints a whole number with a point", [{"stdin": "", "stdout": "10000000"}], "print(10000000.0)", 1),
    ("prints a fraction near a whole number", [{"stdin": "", "stdout": "10000000"}], "print(10000000.5)", 0),
    (
        "returns what a column has in a list",
        {"fn_name": "f", "inputs": [[6]], "outputs": [[56]]},
        "def f(n): return 56",
        1,
    ),
    ("reads a list of lines", {"inputs": [["3", "4"]], "outputs": [["7"]]}, "print(int(input()) + int(input()))", 1),
    ("returns", [CALLS], "def f(xs, n): return sorted(xs)[:n]", 1),
    ("returns a tuple", [CALLS], "def f(xs, n): return tuple(sorted(xs)[:n])", 1),
    ("returns a set", [CALLS], "def f(xs, n): return set(sorted(xs)[:n])", 1),
    ("is a method", [CALLS], "class Solution:\n    def f(self, xs, n): return sorted(xs)[:n]", 1),
    ("prints besides", [CALLS], "def f(xs, n):\n    print('[1, 2]')\n    return sorted(xs)[:n]", 1),
    ("prints instead", [CALLS], "def f(xs, n): print('[1, 2]')", 0),
    ("leaves early", [CALLS], "import os\nos._exit(0)", 0),
    ("has no such function", [CALLS], "def g(xs, n): return sorted(xs)[:n]", 0),
    ("is recursive without end", [CALLS], "def f(xs, n): return f(xs, n)", 0),
    ("returns what is no JSON", [CALLS], "def f(xs, n): return object()", 0),
    (
        "returns a large integer",
        [{"function": "f", "arguments": [], "returns": 999999937}],
        "def f(): return 999999937.0",
        1,
    ),
    (
        "returns a close integer",
        [{"function": "f", "arguments": [], "returns": 999999937}],
        "def f(): return 999999000.0",
        0,
    ),
    ("returns true for 1", [{"function": "f", "arguments": [], "returns": 1}], "def f(): return True", 0),
    ("runs its main part", [CALLS], "def f(xs, n): return sorted(xs)[:n]\nif __name__ == '__main__': 1 / 0", 1),
    ("satisfies", ["assert f(2) == 4", {"assert": "assert f(3) == 9"}], "def f(x): return x * x", 1),
    ("does not satisfy", ["assert f(2) == 4", "assert f(3) == 9"], "def f(x): return x + x", 0),
    ("leaves before the assert", ["assert f(2) == 4"], "import sys\ndef f(x): sys.exit(0)", 0),
    ("never ends", ADD, "while True: pass", 0),
    ("takes all memory", ADD, "x = []\nwhile True: x.append(bytes(1 << 24))", 0),
    ("prints for ever", ADD, "while True: print('3')", 0),
]


async def test_what_a_program_is_worth() -> None:
    rule = CodeRule("code", timeout=RewardTimeout(min_seconds=1.0, max_seconds=1.0))
    async with CodeScorer(rule, Sandbox(1)) as scorer:
        for index, (what, tests, source, worth) in enumerate(WORTH):
            assert await scorer.score(prompt(tests, index), fenced(source)) == worth, what
        assert await scorer.score(prompt(ADD), "I cannot.") == 0.0


async def test_the_share_of_tests() -> None:
    rule = CodeRule("code", 4.0, CodeReward(score=CodeScore.SHARE_OF_TESTS))
    async with CodeScorer(rule, Sandbox(1)) as scorer:
        assert await scorer.score(prompt(ADD), fenced("print(3)")) == 2.0
        assert await scorer.score(prompt(ADD), fenced("print(sum(map(int, input().split())))")) == 4.0


class Recorded(Sandbox):
    """A sandbox that runs nothing: programs "take" what they say in their first line."""

    def __init__(self) -> None:
        super().__init__(1)
        self.programs: list[Program] = []

    async def __aenter__(self) -> Recorded:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return

    async def run(self, program: Program) -> Run:
        self.programs.append(program)
        cpu = float(program.source.split("#")[1])
        if cpu > program.cpu_seconds:
            return Run(End.TIMED_OUT, -9, "", "", program.cpu_seconds + 0.01, program.cpu_seconds)
        return Run(End.EXITED, 0, "right" if "right" in program.source else "wrong", "", cpu, cpu)


async def test_each_test_has_a_timeout_that_follows_its_right_runs() -> None:
    tests = [{"stdin": "", "stdout": "right"}] * 2
    scorer = CodeScorer(CodeRule("code"), sandbox := Recorded())
    async with scorer:
        for seconds, verdict in ((8, "wrong"), (4, "right"), (6.5, "right"), (5.9, "right")):
            await scorer.score(prompt(tests, 7), fenced(f"#{seconds}# {verdict}"))
    bounds = [program.cpu_seconds for program in sandbox.programs]
    assert bounds == [30, 30, 30, 6, 6, 6]
    assert scorer.timeout.drain_raised() == {"7/0": 5900, "7/1": 5900}


async def test_a_run_that_waits_for_its_turn_profits_from_those_before_it() -> None:
    tests = [{"stdin": "", "stdout": "right"}]
    rule = CodeRule("code", settings=CodeReward(parallelism=1))
    async with CodeScorer(rule, sandbox := Recorded()) as scorer:
        await asyncio.gather(*(scorer.score(prompt(tests), fenced("#2# right")) for _ in range(3)))
    assert [program.cpu_seconds for program in sandbox.programs] == [30, 3, 3]


class Held(Recorded):
    """Lets runs of more than 20 s begin, and keeps them until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = asyncio.Event(), asyncio.Event()

    async def run(self, program: Program) -> Run:
        if program.cpu_seconds > 20 and self.programs:
            self.begun.set()
            await self.released.wait()
        return await super().run(program)


async def shadowed(scorer: CodeScorer, sandbox: Held) -> float:
    """The score of a right program that is too late, with its shadow run under way."""
    scorer.timeout.rule = TimeoutRule(shadow_share=1.0)
    tests = [{"stdin": "", "stdout": "right"}]
    async with asyncio.timeout(60):
        assert await scorer.score(prompt(tests), fenced("#1# right")) == 1.0
        score = await scorer.score(prompt(tests), fenced("#5# right"))
        await sandbox.begun.wait()
    return score


async def test_a_shadow_run_delays_no_reward_and_is_counted_at_its_end() -> None:
    async with CodeScorer(CodeRule("code"), sandbox := Held()) as scorer:
        assert await shadowed(scorer, sandbox) == 0.0, "judged at its timeout"
        figures = scorer.timeout.stats
        assert (figures.runs, figures.overruns, figures.shadow_overruns) == (2, 1, 0)
        sandbox.released.set()
        await asyncio.gather(*scorer._shadows)
        assert (figures.runs, figures.overruns, figures.shadow_overruns, figures.late) == (2, 1, 1, 1)
        assert scorer.timeout.drain_raised() == {"0/0": 5000}, "and teaches what it did before"
        assert [program.cpu_seconds for program in sandbox.programs] == [30, 2, 30]
        assert scorer.ended == {"Exited": 1, "TimedOut": 1}, "a shadow is no run of its own"


async def test_a_shadow_run_ends_with_its_scorer() -> None:
    async with asyncio.timeout(10), CodeScorer(CodeRule("code"), sandbox := Held()) as scorer:
        await shadowed(scorer, sandbox)
    assert scorer.timeout.stats.shadow_overruns == 0
    assert not scorer._shadows


async def test_a_shadow_run_that_fails_as_none_should_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(10), CodeScorer(CodeRule("code"), sandbox := Held()) as scorer:
        await shadowed(scorer, sandbox)
        shadows = list(scorer._shadows)
        sandbox.released.set()
        sandbox.programs = None  # type: ignore[assignment]
        await asyncio.gather(*shadows, return_exceptions=True)
        await asyncio.sleep(0)
        assert not scorer._shadows
    assert "a shadow run failed unexpectedly" in caplog.text


class Taking(Recorded):
    """Its runs take a moment, in which others come."""

    async def run(self, program: Program) -> Run:
        await asyncio.sleep(0.01)
        return await super().run(program)


async def test_a_shadow_run_begins_when_no_call_waits() -> None:
    tests, rule = [{"stdin": "", "stdout": "right"}], CodeRule("code", settings=CodeReward(parallelism=1))
    async with asyncio.timeout(10), CodeScorer(rule, sandbox := Taking()) as scorer:
        scorer.timeout.rule = TimeoutRule(shadow_share=1.0)
        scorer.timeout.restore({"0/0": 1000})
        calls = [scorer.score(prompt(tests), fenced(f"#{seconds}# right")) for seconds in (5, 1.1, 1.2, 1.3)]
        first, *others = (asyncio.create_task(call) for call in calls[:2])
        await first
        assert len(scorer._shadows) == 1, "it waits, and others come after it"
        await asyncio.gather(*others, *calls[2:], *scorer._shadows)
    assert [program.cpu_seconds for program in sandbox.programs] == [2, 2, 2, 2, 30]


async def test_a_shadow_run_of_a_rewound_round_teaches_nothing() -> None:
    pool = RewardPool([CodeRule("code")])
    async with asyncio.timeout(10), CodeScorer(CodeRule("code"), sandbox := Held()) as scorer:
        pool._codes["code"] = scorer
        await shadowed(scorer, sandbox)
        shadows = list(scorer._shadows)
        pool.restore_anchors({"code": {"0/0": 1000}})
        sandbox.released.set()
        await asyncio.gather(*shadows, return_exceptions=True)
        assert scorer.timeout.anchor("0/0") == 1.0
        assert scorer.timeout.stats.shadow_overruns == 0
        assert await scorer.score(prompt([{"stdin": "", "stdout": "right"}]), fenced("#1# right")) == 1.0


async def test_anchors_that_rose_are_handed_out_once_and_taken_back() -> None:
    pool = RewardPool([CodeRule("code"), CodeRule("other")])
    pool.restore_anchors({"code": {"7/0": 5900}, "gone": {"1/0": 5}})
    assert pool.take_anchors() == {}, "what the store has is no news"
    timeout = pool._codes["code"].timeout
    for seconds in (5.9, 6.0, 3.0):
        timeout.record(timeout.decide("7/0", "sample"), seconds, seconds, right=True)
    assert pool.take_anchors() == {"code": {"7/0": 6000}}
    assert pool.take_anchors() == {}
    pool.restore_anchors({"code": {"7/0": 5900}})
    assert timeout.anchor("7/0") == 5.9, "a rewound round taught nothing"
    with pytest.raises(ValueError, match=r"the anchor of test '7/0' is 'x'"):
        pool.restore_anchors({"code": {"7/0": "x"}})


class Broken(Recorded):
    async def run(self, program: Program) -> Run:
        raise SandboxFailed("the program was killed by another")


async def test_a_failure_of_ours_is_no_zero() -> None:
    async with CodeScorer(CodeRule("code"), Broken()) as scorer:
        with pytest.raises(ScoreFailed, match="killed by another") as caught:
            await scorer.score(prompt(ADD), fenced("print(3)"))
        assert caught.value.failure is Failure.SANDBOX_FAILED
        assert scorer.timeout.stats.runs == 0


async def test_a_machine_that_fails_the_scorer_aborts_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_more_processes(*_: object) -> float:
        raise BlockingIOError("no process left")

    monkeypatch.setattr(CodeScorer, "score", no_more_processes)
    async with RewardPool([CodeRule("code")]) as pool:
        with pytest.raises(RewardFailed, match="no process left"):
            await pool.score(prompt(ADD), fenced("print(3)"))
        assert pool.figures().failed == {("*", "Crashed"): 1}


async def test_a_record_without_tests_aborts_its_samples() -> None:
    async with RewardPool([CodeRule("code", settings=CodeReward(tests_field="cases", parallelism=1))]) as pool:
        with pytest.raises(RewardFailed, match=r"reward code \(NoTests\): record 5: field 'cases' is no JSON"):
            await pool.score(prompt(ADD, 5), fenced("print(3)"))
        assert pool.figures().failed == {("code", "NoTests"): 1}
        assert await pool.score(prompt(None, 5, cases=ADD[:1]), fenced("print(3)")) == 1.0


async def test_the_file_that_comes_with_the_runtime_has_tests_for_every_prompt() -> None:
    records = read_file(PromptFile(path="package://rljob/addition-programs.jsonl"))
    assert len(records) == 100
    rule = CodeRule("tests", settings=CodeReward(program="print({response})", parallelism=2))
    async with RewardPool([rule]) as pool:
        for index in (0, 57, 99):
            record = records[index]
            asked = Prompt(index, record.text_or_messages, (1,), record.answer, record.metadata)
            assert await pool.score(asked, record.answer) == 1.0
            assert await pool.score(asked, "?") == 0.0


class Unavailable(Recorded):
    async def __aenter__(self) -> Recorded:
        raise SandboxUnavailable("nothing keeps a program from this machine's files")


async def test_a_machine_without_a_sandbox_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.rewards.pool.Sandbox", lambda processes: Unavailable())
    with pytest.raises(InvalidReward, match=r"reward code \(kind Code\) needs a sandbox: nothing keeps") as caught:
        async with RewardPool([CodeRule("code")]):
            pass
    assert isinstance(caught.value, CannotSandbox)
    assert caught.value.reason == "SandboxUnavailable"


async def test_kinds_add_up() -> None:
    rules = [Rule("length", "rljob_runtime.rewards.builtin:has_number", 0.5), CodeRule("code", 2.0)]
    async with RewardPool(rules) as pool:
        assert await pool.score(prompt(ADD[:1]), fenced("print(3)")) == 2.5
        assert await pool.score(prompt(ADD[:1]), fenced("print()")) == 0.0
    figures = pool.figures()
    assert (figures.scored, figures.programs, figures.timeouts) == (2, {"Exited": 2}, 0)
    assert figures.program_seconds > 0
    assert figures.processes == 2, "a worker and a supervisor"
