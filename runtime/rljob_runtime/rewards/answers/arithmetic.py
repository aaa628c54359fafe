"""Exact arithmetic of expressions that contain only numbers: 3 1/2, 1.2 * 10^{22}, \\frac{1}{2^{99}}, 100!.

A model wrote the text, and a short text can name a number that no machine can store. The size of each result is known
before it is computed. Beyond a bound, `TooLarge` is raised instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial

MOST_BITS = 1 << 16
"""Bits of a numerator or denominator: about 20,000 decimal digits."""
MOST_DEPTH = 40
"""Nested brackets."""
MOST_WORK = 1 << 22
"""Total bits of all intermediate results."""
MOST_DIGITS = 4_000
"""Digits of a written number. Python does not parse more at a time."""

_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)|[1-9]\d{0,2}(?: \d{3})+(?![\d/])|\d+"
_EXPONENT = r"[eE](?P<power>[-+]?\d+)(?![\dA-Za-z_]|\.\d)"
LITERAL = re.compile(
    rf"(?:(?P<whole>{_GROUPED})(?:\.(?P<part>\d+)|\.(?!\d))?|(?<!\d)\.(?P<only>\d+))(?:{_EXPONENT})?", re.ASCII
)
"""An unsigned number: 12, 1,234.5, 1 234, .5, 5., 1e-05."""
_TOKEN = re.compile(rf"\s*(?:(?P<number>{LITERAL.pattern})|(?P<sign>\\frac|\\binom|[-+*/^!(){{}}]))", re.ASCII)


class TooLarge(ValueError):
    """The expression exceeds one of the bounds."""


class NoArithmetic(ValueError):
    """The text contains more than numbers."""


@dataclass(frozen=True)
class Literal:
    """A written number.

    `digits` is the number of significant digits. `unit` is one in the last place; None for an integer.
    """

    value: Fraction
    digits: int
    unit: Fraction | None = None


def literal(match: re.Match[str]) -> Literal:
    """Return the number of a match of `LITERAL`.

    Raises `TooLarge`.
    """
    whole = (match["whole"] or "").replace(",", "").replace(" ", "")
    part = match["part"] or match["only"] or ""
    written, power = (whole + part).lstrip("0"), match["power"] or "0"
    if len(written) > MOST_DIGITS or len(power.lstrip("-+0")) > 5:
        raise TooLarge(f"a number of {len(written)} digits and exponent {power[:12]}")
    shift = int(power) - len(part)
    if abs(shift) > MOST_BITS // 4:
        raise TooLarge(f"a number with exponent {power}")
    unit = Fraction(10) ** shift
    return Literal(int(written or "0") * unit, max(1, len(written)), unit if shift < 0 or part else None)


def evaluate(text: str) -> Fraction:
    """Evaluate the expression.

    Raises `NoArithmetic` and `TooLarge`.
    """
    return _Parser(_tokens(text)).whole()


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Raise `base` to an integer exponent.

    Raises `NoArithmetic`, and `TooLarge` before the computation.
    """
    if exponent.denominator != 1 or (base == 0 and exponent <= 0):
        raise NoArithmetic(f"no power {exponent}")
    if abs(exponent) * _bits(base) > MOST_BITS and abs(base) != 1 and base != 0:
        raise TooLarge("a power")
    if abs(base) == 1:  # the exponent may have any size
        return base if exponent.numerator % 2 else Fraction(1)
    return base ** int(exponent)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _natural(value: Fraction, most: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NoArithmetic(f"{value} is no natural number")
    if value > most:
        raise TooLarge(f"{value}")
    return int(value)


def _factorial(value: Fraction) -> Fraction:
    return Fraction(factorial(_natural(value, 5_000)))


def _binomial(upper: Fraction, lower: Fraction) -> Fraction:
    high, low = _natural(upper, 1 << 64), _natural(lower, 1 << 64)
    if low > high:
        return Fraction(0)
    if min(low, high - low) * high.bit_length() > MOST_BITS:
        raise TooLarge("a binomial coefficient")
    return Fraction(comb(high, low))


def _tokens(text: str) -> list[str | Literal]:
    found: list[str | Literal] = []
    place, text = 0, text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NoArithmetic(f"{text[place : place + 20]!r}")
        found.append(match["sign"] or literal(match))
        place = match.end()
    return found


class _Parser:
    """Recursive-descent parser for sums of products of signed powers."""

    def __init__(self, tokens: list[str | Literal]) -> None:
        self._tokens = tokens
        self._place = self._depth = self._spent = 0

    def whole(self) -> Fraction:
        value = self._sum()
        if self._place < len(self._tokens):
            raise NoArithmetic("text follows it")
        return value

    def _held(self, value: Fraction) -> Fraction:
        """Count a result against the bounds and return it."""
        self._spent += _bits(value)
        if _bits(value) > MOST_BITS or self._spent > MOST_WORK:
            raise TooLarge("a number")
        return value

    def _peek(self) -> str | Literal | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _takes(self, *signs: str) -> str | None:
        found = self._peek()
        if isinstance(found, str) and found in signs:
            self._place += 1
            return found
        return None

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._takes("+", "-"):
            other = self._product()
            value = self._held(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            if sign := self._takes("*", "/"):
                other = self._signed()
                if sign == "/" and other == 0:
                    raise NoArithmetic("divided by zero")
                value = self._held(value * other if sign == "*" else value / other)
            elif self._peek() == "(":
                value = self._held(value * self._power())
            else:
                return value

    def _signed(self) -> Fraction:
        negative = False
        while sign := self._takes("+", "-"):
            negative ^= sign == "-"
        value = self._power()
        return -value if negative else value

    def _power(self) -> Fraction:
        value = self._factor()
        if self._takes("^"):
            return self._held(power(value, self._deeper(self._exponent)))
        return value

    def _exponent(self) -> Fraction:
        return self._group("{", "}") if self._peek() == "{" else self._signed()

    def _factor(self) -> Fraction:
        """Parse a number, bracket or fraction, with its factorials."""
        found = self._peek()
        if isinstance(found, Literal):
            self._place += 1
            value = found.value + self._rest_of_mixed(found)
        elif found == "(":
            value = self._group("(", ")")
        elif found == "{":
            value = self._group("{", "}")
        elif self._takes("\\frac"):
            upper, lower = self._argument(), self._argument()
            if lower == 0:
                raise NoArithmetic("divided by zero")
            value = self._held(upper / lower)
        elif self._takes("\\binom"):
            value = self._held(_binomial(self._argument(), self._argument()))
        else:
            raise NoArithmetic(f"{found!r} where a number would be right")
        while self._takes("!"):
            value = self._held(_factorial(value))
        return value

    def _rest_of_mixed(self, whole: Literal) -> Fraction:
        """Parse the fraction of a mixed number.

        3 1/2 and 3\\frac{1}{2} are three and a half. A fraction that is not between 0 and 1 makes no mixed number.
        """
        if whole.unit is not None:
            return Fraction(0)
        if self._peek() == "\\frac":
            self._place += 1
            upper, lower = self._argument(), self._argument()
        elif self._spells(Literal, "/", Literal):
            upper, lower = (self._tokens[self._place + step].value for step in (0, 2))  # type: ignore[union-attr]
            self._place += 3
        else:
            return Fraction(0)
        if not 0 < upper < lower or upper.denominator != 1 or lower.denominator != 1:
            raise NoArithmetic("a number before a fraction that is not below 1")
        return upper / lower

    def _spells(self, *kinds: type | str) -> bool:
        ahead = self._tokens[self._place : self._place + len(kinds)]
        return len(ahead) == len(kinds) and all(
            token == kind if isinstance(kind, str) else isinstance(token, kind)
            for token, kind in zip(ahead, kinds, strict=True)
        )

    def _argument(self) -> Fraction:
        """Parse an argument of \\frac: a group or one digit.

        \\frac34 is three quarters.
        """
        if self._peek() == "{":
            return self._group("{", "}")
        found = self._peek()
        if not isinstance(found, Literal) or found.unit is not None:
            raise NoArithmetic("no argument")
        digits = str(found.value.numerator)
        if len(digits) > 1:
            self._tokens[self._place] = Literal(Fraction(int(digits[1:])), len(digits) - 1)
        else:
            self._place += 1
        return Fraction(int(digits[0]))

    def _group(self, opening: str, closing: str) -> Fraction:
        if not self._takes(opening):
            raise NoArithmetic(f"no {opening}")
        value = self._deeper(self._sum)
        if not self._takes(closing):
            raise NoArithmetic(f"no {closing}")
        return value

    def _deeper(self, work: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise TooLarge("brackets in brackets")
        try:
            return work()
        finally:
            self._depth -= 1
