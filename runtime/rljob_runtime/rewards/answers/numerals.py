"""Numerals: finds numbers in running text: 1,002 pens; \N{MINUS SIGN}3; .5; 1e-05; full-width digits."""

from __future__ import annotations

import re
from fractions import Fraction

from rljob_runtime.rewards.answers.arithmetic import LITERAL, TooLarge, literal
from rljob_runtime.rewards.answers.notation import MINUS, last_match

_NUMBER = re.compile(rf"(?P<sign>(?<![\w)\]}}%])-)?(?:{LITERAL.pattern})", re.ASCII)
_WIDE = str.maketrans(
    {
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **dict.fromkeys(MINUS, "-"),
        "\N{FULLWIDTH FULL STOP}": ".",
        "\N{FULLWIDTH COMMA}": ",",
    }
)
_WORKED_OUT = re.compile(r"####[ \t]*([^\n]*)")


class UnusableReference(ValueError):
    """No answer can be compared with the reference answer.

    The message names the reason and the expected form.
    """


def has_number(text: str) -> bool:
    """Return whether the text contains a number."""
    return _NUMBER.search(text.translate(_WIDE)) is not None


def last_numeral(text: str) -> str | None:
    """Return the last number of a text as ASCII.

    -1002 for \N{MINUS SIGN}1,002.
    """
    match = _last(text)
    if match is None:
        return None
    return match[0].replace(",", "").replace(" ", "").rstrip(".")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text.

    Raises `TooLarge`.
    """
    match = _last(text)
    return None if match is None else _value(match)


def only_number(reference: str) -> Fraction:
    """Return the number of a reference answer.

    The text after the last ####, or the whole text without one, must contain exactly one number. Raises
    `UnusableReference`.
    """
    answer = final_line(reference)
    found = list(_NUMBER.finditer(answer.translate(_WIDE)))
    if len(found) != 1:
        raise UnusableReference(
            f"the reference answer {answer[:80]!r} has {len(found)} numbers in it; one would be right"
        )
    try:
        return _value(found[0])
    except TooLarge as error:
        raise UnusableReference(f"the reference answer {answer[:80]!r} is too large: {error}") from error


def final_line(text: str) -> str:
    """Return the text after the last ####, or the whole text without one."""
    found = last_match(_WORKED_OUT, text)
    return (text if found is None else found[1]).strip()


def _last(text: str) -> re.Match[str] | None:
    return last_match(_NUMBER, text.translate(_WIDE))


def _value(match: re.Match[str]) -> Fraction:
    value = literal(match).value
    return -value if match["sign"] else value
