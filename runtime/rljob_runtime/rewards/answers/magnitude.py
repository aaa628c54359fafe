"""Magnitude: bounds the size of a formula before it is evaluated: 9^{9^{9}} is short, and no machine can store it.

There are two upper bounds. The first is on the text, because the parser evaluates some functions (gcd) while it parses.
The second is on the unevaluated tree that it returns. A formula beyond a bound scores 0: a reference that can be
compared is never so large.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from rljob_runtime.rewards.answers.arithmetic import NoArithmetic, TooLarge, evaluate

MOST_BITS = 1 << 17
"""Bits of a number in the formula."""
MOST_NODES = 2_000
MOST_DEPTH = 60
MOST_TERMS = 1_000
"""Terms of a sum or product with limits."""
MOST_EXPANDED = 512
"""Exponent of a term with unknowns."""
UNKNOWN_BITS = 64
MOST_EXPONENT, MOST_FACTORIAL = 10_000, 5_000
"""`MOST_EXPONENT` and `MOST_FACTORIAL` bound the operands in the text of a formula."""

_SIGNS = re.compile(r"\^|!|\\binom(?![a-zA-Z])")
_SIGNED = re.compile(r"[-+]?[\d.]+")
_AT_END = re.compile(r"[\d.]+$")
_MIRRORED = str.maketrans("(){}", ")(}{")

_GROW_FAST = frozenset(
    [
        "factorial",
        "factorial2",
        "subfactorial",
        "gamma",
        "loggamma",
        "RisingFactorial",
        "FallingFactorial",
        "fibonacci",
        "lucas",
        "catalan",
        "bell",
        "bernoulli",
        "euler",
        "harmonic",
        "partition",
        "exp",
        "sinh",
        "cosh",
        "zeta",
        "prime",
    ]
)
FASTEST_BITS = 13
"""Bits of the argument of a function in `_GROW_FAST`."""


def bounded_text(latex: str) -> None:
    """Raise `TooLarge` for a power, factorial or binomial coefficient of numbers beyond the bounds."""
    for match in _SIGNS.finditer(latex):
        behind = latex[match.end() :]
        if match[0] == "!":
            _check_operand(_before(latex[: match.start()]), MOST_FACTORIAL)
        elif match[0] == "^":
            _check_power(latex[: match.start()], behind, 0)
        else:
            upper = _group(behind)
            _check_operand(_group(behind[len(upper) :].lstrip()), MOST_FACTORIAL)


def _check_power(before: str, behind: str, depth: int) -> float:
    """Return the exponent times those in its base.

    Raises `TooLarge`.
    """
    written = _check_operand(_group(behind), MOST_EXPONENT)
    exponent = float(abs(written)) if written else 1.0
    base = _before(before)
    if depth < MOST_DEPTH and len(base) > 2:
        inner = [
            _check_power(base[: match.start()], base[match.end() :], depth + 1) for match in re.finditer(r"\^", base)
        ]
        exponent *= max(inner, default=1)
    if exponent > MOST_EXPONENT:
        raise TooLarge("a power of a power")
    return exponent


def _check_operand(text: str, most: int) -> Fraction | None:
    try:
        value = evaluate(text)
    except NoArithmetic:
        return None
    if abs(value) > most:
        raise TooLarge(text[:40])
    return value


def _group(text: str) -> str:
    """Return the group or signed number at the start of the text."""
    text = text.lstrip()
    if text[:1] not in ("{", "("):
        match = _SIGNED.match(text)
        return match[0] if match else text[:1]
    return text[: _closing(text)]


def _before(text: str) -> str:
    """Return the group or number at the end of the text."""
    text = text.rstrip()
    if text[-1:] not in ("}", ")"):
        match = _AT_END.search(text)
        return match[0] if match else text[-1:]
    mirrored = text[::-1].translate(_MIRRORED)
    return text[len(text) - _closing(mirrored) :]


def _closing(text: str) -> int:
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in "({") - (sign in ")}")
        if depth == 0:
            return place + 1
    return len(text)


def bounded(expression: Any) -> None:
    """Raise `TooLarge` for an expression beyond the bounds."""
    _Size().bits(expression, 0)


class _Size:
    def __init__(self) -> None:
        self._nodes = 0

    def bits(self, expression: Any, depth: int) -> float:
        """Return the bits of the largest number in the expression."""
        self._nodes += 1
        if depth > MOST_DEPTH or self._nodes > MOST_NODES:
            raise TooLarge("a formula of many parts")
        name = type(expression).__name__
        inner = [self.bits(each, depth + 1) for each in _children(expression)]
        found = self._bits(name, expression, inner)
        if found > MOST_BITS:
            raise TooLarge(f"a formula with {name}")
        return found

    def _bits(self, name: str, expression: Any, inner: list[float]) -> float:
        if not inner:
            return _atom(expression)
        if name == "Pow":
            return _power(expression, *inner)
        if name in _GROW_FAST:
            if max(inner) > FASTEST_BITS and not expression.free_symbols:
                raise TooLarge(name)
            return float(max(inner) * 2.0 ** min(max(inner), FASTEST_BITS))
        if name == "binomial":
            if min(inner) > FASTEST_BITS and not expression.free_symbols:
                raise TooLarge(name)
            return float(inner[0] * 2.0 ** min(inner[1], FASTEST_BITS))
        if name in ("Sum", "Product"):
            _check_limits(expression)
            return max(inner) * (MOST_TERMS if name == "Product" else 1)
        return sum(inner) if name in ("Mul", "MatMul") else max(inner) + len(inner).bit_length()


def _children(expression: Any) -> tuple[Any, ...]:
    if hasattr(expression, "flat") and hasattr(expression, "shape"):
        return tuple(expression.flat())
    return tuple(getattr(expression, "args", ()))


def _atom(expression: Any) -> float:
    if getattr(expression, "is_Rational", False):
        return max(int(expression.p).bit_length(), int(expression.q).bit_length())
    if getattr(expression, "is_Float", False):
        _, _, exponent, bits = expression._mpf_
        return abs(int(exponent)) + int(bits)
    return UNKNOWN_BITS if getattr(expression, "is_Symbol", False) else 4.0


def _power(expression: Any, base: float, exponent: float) -> float:
    unknown = bool(expression.free_symbols)
    whole = getattr(expression.exp, "is_Integer", False)
    size = abs(int(expression.exp)) if whole else 2.0 ** min(exponent, 64.0)
    if unknown:
        if whole and size > MOST_EXPANDED:
            raise TooLarge("a power with unknowns")
        return max(base, exponent, UNKNOWN_BITS)
    return base * size


def _check_limits(expression: Any) -> None:
    for _, *ends in expression.limits:
        whole = len(ends) == 2 and all(getattr(end, "is_Integer", False) for end in ends)
        if whole and int(ends[1]) - int(ends[0]) > MOST_TERMS:
            raise TooLarge("a sum of many terms")
