"""Test cases of code rewards: reads the tests in a prompt's record and judges programs by them.

A test is an object of one of three forms:

    {"stdin": "3 4\\n", "stdout": "7\\n"}                          a script that reads and prints
    {"function": "add", "arguments": [3, 4], "returns": 7}       a function, or a method of a class Solution
    {"assert": "assert add(3, 4) == 7"}                          code that raises when it is not satisfied

Two forms of public data sets are also accepted: {"inputs": […], "outputs": […], "fn_name": …} for all tests together (a
column of APPS, see `_from_columns`), and a list of assert statements as text.

Expected values of the first two forms never enter the sandbox, so a program cannot look them up. An assert runs in the
interpreter of the program, which can cheat. Prefer the other forms.
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
"""Tolerance for expected numbers with a fraction. An expected integer must match exactly."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
SPARE_OUTPUT_BYTES = 1 << 16
"""Output that a program may print beyond twice the expected output before it is ended."""

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
    """The tests cannot be used.

    The message names the field and the expected form.
    """


class TestCase(Protocol):
    """One test."""

    @property
    def output_bytes(self) -> int:
        """Largest output that can be correct."""
        ...

    def script(self, source: str) -> tuple[str, str]:
        """Return the script that tests a program, and its standard input."""
        ...

    def passes(self, run: Run) -> bool:
        """Return whether a run that ended cleanly satisfies the test."""
        ...


@dataclass(frozen=True)
class StandardStreams:
    """A script test.

    Line by line, printed and expected output must have the same tokens, separated by any white space. Empty lines at
    the end do not count.
    """

    # The graders of the data sets compare in this way (APPS splits lines, LiveCodeBench strips them, Codeforces's
    # `lcmp` compares tokens), and their expected texts rely on it: spaces at either end, or two where one is meant. A
    # strict comparison would fail correct programs. Where the layout is the task, a function returns it as text.

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
    """A function test: the function and its return value as JSON.

    A tuple becomes a list, a set a sorted list. With `wrapped`, `returns` is a list of one: the list itself or its
    member is correct.
    """

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
        expected = (self.returns, self.returns[0]) if self.wrapped else (self.returns,)
        try:
            got = json.loads(run.stdout)
            return any(_same_value(got, value) for value in expected)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True)
class Assertion:
    """Code that runs after the program, in the same interpreter.

    It passes when it reaches its end. Exiting early with status 0 does not pass.
    """

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
    """Read the tests of a record from the field `field`, or from the answer when the record has no such field.

    Both may be JSON text. Raises `InvalidTests`.
    """
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
    """Read a column of APPS.

    APPS stores texts as lists of lines. Some of its records wrap a function's return value in a list of one. When every
    output is such a list, the two cases cannot be distinguished, so both are accepted, as by the grader of APPS.
    """
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
    """Return a text, or join a list of its lines."""
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


def _same_token(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if "." not in expected:
        return "." in got and _is_integer(got, expected)
    try:
        return _close(float(got), float(expected))
    except ValueError:
        return False


def _is_integer(got: str, expected: str) -> bool:
    """Return whether a number with a decimal point equals the integer exactly.

    3.0 is 3, and 123456788.9 is not 123456789.
    """
    try:
        return _INTEGER.fullmatch(expected) is not None and Decimal(got) == Decimal(expected)
    except InvalidOperation:
        return False


def _same_value(got: Any, expected: Any) -> bool:
    """Compare JSON values.

    true differs from 1, but 1.0 equals 1. Numbers are compared with a tolerance where a fraction is expected.
    """
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(expected, float):
        return isinstance(got, int | float) and _close(got, expected)
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(_same_value, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_same_value(got[key], expected[key]) for key in expected)
    return bool(got == expected)


def _close(got: float, expected: float) -> bool:
    try:
        return math.isclose(got, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    except OverflowError:
        return False
