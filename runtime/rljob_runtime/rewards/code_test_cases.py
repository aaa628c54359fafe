"""The tests of a prompt, from the fields of its record, and how each judges a program.

A test is an object of one of three forms:

    {"stdin": "3 4\\n", "stdout": "7\\n"}                          a script that reads and prints
    {"function": "add", "arguments": [3, 4], "returns": 7}       a function, or a method of a class Solution
    {"assert": "assert add(3, 4) == 7"}                          code that raises when it is not satisfied

Also understood, as public data sets have them: {"inputs": […], "outputs": […], "fn_name": …} for all tests at once (a
column of APPS, see `_from_columns`), and a list of assert statements as text.

Expected values of the first two forms never enter the sandbox, so a program has nothing to look up. An assert runs in
the interpreter that runs the program, which can cheat it; take the other forms where you can.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from rljob_runtime.sandbox.program import Run

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-6, 1e-9
"""Of numbers that are expected with a fraction. An integer is expected exactly."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
SPARE_OUTPUT_BYTES = 1 << 16
"""A program may print so much more than twice what is expected before it is ended."""

_PRELUDE = """
import json, os, sys
_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
_names = {"__name__": "program"}
exec(compile(%(source)r, "program.py", "exec"), _names)
"""
_CALL = """
_function = _names[%(function)r] if %(function)r in _names else getattr(_names["Solution"](), %(function)r)
_value = _function(*json.loads(%(arguments)r))
json.dump(_value, _out, default=lambda value: sorted(value) if isinstance(value, (set, frozenset)) else list(value))
_out.flush()
"""
_ASSERT = """
exec(compile(%(code)r, "tests.py", "exec"), _names)
_out.write(%(token)r)
_out.flush()
"""


class InvalidTests(ValueError):
    """Tests that cannot be used: the message names the field and says what would be right."""


class TestCase(Protocol):
    """One test."""

    @property
    def output_bytes(self) -> int:
        """More output than this cannot be right."""
        ...

    def script(self, source: str) -> tuple[str, str]:
        """(what to run, what it reads) to test a program."""
        ...

    def passes(self, run: Run) -> bool:
        """Whether a run that ended cleanly satisfies the test."""
        ...


@dataclass(frozen=True)
class StandardStreams:
    """A script: line by line, what is printed and expected has the same tokens, parted by any white space; empty lines
    at the end do not count."""

    # So judge the graders of the data sets (APPS splits lines, LiveCodeBench strips them, Codeforces's `lcmp` compares
    # tokens), and their expected texts are written for that: spaces at either end, or two where one is meant. To count
    # those would make right programs wrong. Where the layout is what is asked for, a function returns it as text.

    stdin: str
    stdout: str

    @property
    def output_bytes(self) -> int:
        return 2 * len(self.stdout.encode()) + SPARE_OUTPUT_BYTES

    def script(self, source: str) -> tuple[str, str]:
        return source, self.stdin

    def passes(self, run: Run) -> bool:
        printed, expected = _lines(run.stdout), _lines(self.stdout)
        return len(printed) == len(expected) and all(map(_same_line, printed, expected))


@dataclass(frozen=True)
class Call:
    """A function and the value it must return, both as JSON has them: a tuple is a list, a set a sorted list.
    `wrapped`: `returns` is a list of one, and may be that value or hold it."""

    function: str
    arguments: tuple[Any, ...]
    returns: Any
    wrapped: bool = False

    @property
    def output_bytes(self) -> int:
        return 2 * len(json.dumps(self.returns)) + SPARE_OUTPUT_BYTES

    def script(self, source: str) -> tuple[str, str]:
        text = _PRELUDE + _CALL
        return text % {"source": source, "function": self.function, "arguments": json.dumps(self.arguments)}, ""

    def passes(self, run: Run) -> bool:
        wanted = (self.returns, self.returns[0]) if self.wrapped else (self.returns,)
        try:
            got = json.loads(run.stdout)
            return any(_same_value(got, value) for value in wanted)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True)
class Assertion:
    """Code that is run after the program, in the same interpreter. It passes when it reaches its end: leaving early
    with status 0 does not."""

    code: str
    token: str

    @property
    def output_bytes(self) -> int:
        return SPARE_OUTPUT_BYTES

    def script(self, source: str) -> tuple[str, str]:
        return (_PRELUDE + _ASSERT) % {"source": source, "code": self.code, "token": self.token}, ""

    def passes(self, run: Run) -> bool:
        return run.stdout == self.token


def parse_tests(field: str, answer: Any, metadata: Mapping[str, Any]) -> tuple[TestCase, ...]:
    """The tests of a record: the field `field`, or the answer where the record has no other such field. Both may be
    JSON in a text. Raises `InvalidTests`."""
    given = metadata.get(field, answer)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InvalidTests(f"field {field!r} is no JSON: {error}") from error
    tests: Sequence[TestCase] = ()
    if isinstance(given, Mapping):
        tests = _from_columns(field, given)
    elif isinstance(given, list):
        tests = [_parse(f"{field}[{index}]", test) for index, test in enumerate(given)]
    if not tests:
        raise InvalidTests(f"field {field!r} is {given!r:.80}; a list with at least one test would be right")
    return tuple(tests)


def _from_columns(field: str, columns: Mapping[str, Any]) -> Sequence[TestCase]:
    """APPS has texts as lists of lines, and puts what a function returns into a list of one in some of its records.
    Which ones cannot be told where every output is such a list: there both are right, as APPS's grader has it."""
    inputs, outputs, function = columns.get("inputs"), columns.get("outputs"), columns.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InvalidTests(f"field {field!r} is an object; lists inputs and outputs of the same length would be right")
    if function is None:
        return [
            StandardStreams(_text(f"{field}.inputs[{index}]", i), _text(f"{field}.outputs[{index}]", o))
            for index, (i, o) in enumerate(zip(inputs, outputs, strict=True))
        ]
    if not isinstance(function, str) or not function.isidentifier():
        raise InvalidTests(f"{field}.fn_name is {function!r:.80}; the name of a function would be right")
    wrapped = all(isinstance(one, list) and len(one) == 1 for one in outputs)
    return [
        Call(function, _arguments(f"{field}.inputs[{index}]", i), o, wrapped)
        for index, (i, o) in enumerate(zip(inputs, outputs, strict=True))
    ]


def _text(where: str, given: Any) -> str:
    """A text, or its lines."""
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return "".join(line.removesuffix("\n") + "\n" for line in given)
    raise InvalidTests(f"{where} is {given!r:.80}; a text, or a list of its lines, would be right")


def _arguments(where: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, list):
        return tuple(given)
    raise InvalidTests(f"{where} is {given!r:.80}; the list of the function's arguments would be right")


def _parse(where: str, test: Any) -> TestCase:
    if isinstance(test, str):
        test = {"assert": test}
    if isinstance(test, Mapping):
        match dict(test):
            case {"stdin": str(stdin), "stdout": str(stdout)}:
                return StandardStreams(stdin, stdout)
            case {"function": str(function), "arguments": list(arguments), "returns": returns}:
                return Call(function, tuple(arguments), returns)
            case {"assert": str(code)}:
                return Assertion(code, secrets.token_hex(16))
    raise InvalidTests(
        f"{where} is {test!r:.80}; an object with stdin and stdout (text), with function, arguments (a list) and "
        "returns, or with assert (text) would be right"
    )


def _lines(text: str) -> list[str]:
    return text.rstrip().splitlines()


def _same_line(printed: str, expected: str) -> bool:
    got, wanted = printed.split(), expected.split()
    return len(got) == len(wanted) and all(map(_same_token, got, wanted))


def _same_token(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    if "." not in wanted:
        return "." in got and _is_integer(got, wanted)
    try:
        return _close(float(got), float(wanted))
    except ValueError:
        return False


def _is_integer(got: str, wanted: str) -> bool:
    """Whether a number with a point is exactly the integer: 3.0 is 3, and 123456788.9 is not 123456789."""
    try:
        return _INTEGER.fullmatch(wanted) is not None and Decimal(got) == Decimal(wanted)
    except InvalidOperation:
        return False


def _same_value(got: Any, wanted: Any) -> bool:
    """Equal as JSON values: true is not 1, but 1.0 is. Numbers are close where a fraction is wanted, else equal."""
    if isinstance(got, bool) or isinstance(wanted, bool):
        return got is wanted
    if isinstance(wanted, float):
        return isinstance(got, int | float) and _close(got, wanted)
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(_same_value, got, wanted))
    if isinstance(got, dict) and isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(_same_value(got[key], wanted[key]) for key in wanted)
    return bool(got == wanted)


def _close(got: float, wanted: float) -> bool:
    try:
        return math.isclose(got, wanted, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    except OverflowError:
        return False
