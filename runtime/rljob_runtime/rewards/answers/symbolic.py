"""Symbolic comparison: parses formulas with math-verify, bounds them, and compares them.

math-verify's own time-outs are off: they count wall clock, and fail a correct answer on a busy machine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rljob_runtime.rewards.answers.arithmetic import TooLarge
from rljob_runtime.rewards.answers.equality import ENOUGH_DIGITS
from rljob_runtime.rewards.answers.kinds import Formula, Number
from rljob_runtime.rewards.answers.magnitude import bounded, bounded_text

# Each process would print that the time-outs are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

LONGEST_FORMULA = 1_000
"""Characters of a formula."""
EXACT_DIGITS, ROUNDED_DIGITS = 30, 12
"""`EXACT_DIGITS` and `ROUNDED_DIGITS` are the digits to which an expression must equal the number."""


def parsed(latex: str) -> list[Any]:
    """Parse the expressions in a formula.

    Empty when it cannot be parsed. Raises `TooLarge`.
    """
    from math_verify import LatexExtractionConfig, parse

    if len(latex) > LONGEST_FORMULA:
        raise TooLarge(f"a formula of {len(latex)} characters")
    bounded_text(latex)
    escaped = latex.replace("%", "\\%").replace("\N{DEGREE SIGN}", "^{\\circ}")
    found = [
        each
        for each in parse(f"${escaped}$", [LatexExtractionConfig()], parsing_timeout=0)
        if not isinstance(each, str)
    ]
    for each in found:
        bounded(each)
    return found


@lru_cache(maxsize=1024)
def _reference(latex: str) -> tuple[Any, ...]:
    return tuple(parsed(latex))


def agree(reference: Number | Formula, answer: Number | Formula) -> bool:
    """Compare readings as `equality.Compare`.

    Raises `TooLarge`.
    """
    if isinstance(reference, Formula) and isinstance(answer, Formula):
        return _verified(_reference(reference.latex), parsed(answer.latex))
    if isinstance(reference, Number):
        assert isinstance(answer, Formula)
        return any(_is_value(each, reference) for each in parsed(answer.latex))
    assert isinstance(answer, Number)
    return any(_is_value(each, answer) for each in _reference(reference.latex))


def _verified(reference: Sequence[Any], answer: Sequence[Any]) -> bool:
    from math_verify import verify

    return bool(verify(list(reference), list(answer), timeout_seconds=None))


def _is_value(expression: Any, number: Number) -> bool:
    """Return whether an expression without unknowns equals the number.

    It must agree to 30 digits, to 12 if it contains rounded numbers, or to the last place of a number with a decimal
    point.
    """
    from sympy import Expr, Float, Rational

    if not isinstance(expression, Expr) or expression.free_symbols:
        return _verified([Rational(number.value.numerator, number.value.denominator)], [expression])
    places = EXACT_DIGITS + number.value.numerator.bit_length() // 3
    try:
        found = expression.doit().evalf(places)
        if not found.is_Float and not found.is_Rational:
            return False
        value = Fraction(str(found))
    except (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError):
        return False  # sympy finds no value
    apart = abs(value - number.value)
    if number.place is not None and number.digits >= ENOUGH_DIGITS and apart < number.place:
        return True
    return bool(apart <= abs(number.value) / 10 ** (ROUNDED_DIGITS if expression.has(Float) else EXACT_DIGITS))
