"""Equality: decides whether two readings of an answer are equal.

The rules here come before math-verify, because it compares numbers to six decimal places, treats words as products of
letters, and treats dates and ranges as differences. Only formulas go to math-verify.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from rljob_runtime.rewards.answers.kinds import (
    Based,
    Choice,
    Fields,
    Formula,
    Items,
    Named,
    Number,
    Reading,
    Span,
    Union,
    Words,
)
from rljob_runtime.rewards.answers.readings import squeezed

ENOUGH_DIGITS = 6
"""Significant digits of a rounded number that stands for a number without a finite decimal expansion."""
DOUBLE_DIGITS = 15
"""Significant digits that a double always keeps. Further printed digits may be noise."""
MOST_SHUFFLED = 64
"""Members of a list that are compared in any order."""


Compare = Callable[[Number | Formula, Number | Formula], bool]
"""Compares two readings of which at least one is a formula."""


def same(reference: Reading, answer: Reading, compare: Compare) -> bool:
    """Return whether the answer equals the reference.

    The relation is not symmetric: 2x + 1 = 5 answers 5, and 5 does not answer 2x + 1 = 5.
    """
    match reference, answer:
        case Named(name, value), Named(other, given) if name == other:
            return same(value, given, compare)
        case (Named(latex=latex), Named(latex=written) | Formula(written)) | (Formula(latex), Named(latex=written)):
            return _same_formula(Formula(latex), Formula(written), compare)
        case Named(_, value, letter), _:
            return letter and same(value, answer, compare)
        case _, Named(_, given):
            return same(reference, given, compare)
        case (Choice(letter, _), Words(given)) | (Words(given), Choice(letter, _)):
            return given == letter
        case Choice(letter, value), Choice(other, given):
            return letter == other and same(value, given, compare)
        case Choice(_, value), _:
            return same(value, answer, compare)
        case _, Choice(_, given):
            return same(reference, given, compare)
        case Number(), Number():
            return same_number(reference, answer)
        case (Number() | Formula() as expected, Formula() as found) | (Formula() as expected, Number() as found):
            return _same_formula(expected, found, compare)
        case Span(), Span():
            return same_number(reference.low, answer.low) and same_number(reference.high, answer.high)
        case (Number(value), Based(digits)) | (Based(digits), Number(value)):
            return digits == str(value)
        case (Number(value), Fields(numbers=numbers, half=half)) | (Fields(numbers=numbers, half=half), Number(value)):
            return bool(half) and numbers == (value, Fraction(0))
        case Fields(), Fields():
            halves = {reference.half, answer.half} - {""}
            return len(halves) < 2 and (reference.sort, reference.numbers) == (answer.sort, answer.numbers)
        case Items(), Items():
            return _same_items(reference, answer, compare)
        case (
            (Union(members), Union(given))
            | (Union(members), Items("", _, given))
            | (Items("", _, members), Union(given))
        ):
            return _in_any_order(members, given, compare)
        case (Words(text), Formula(latex)) | (Formula(latex), Words(text)):
            return squeezed(text) == squeezed(latex).casefold()
    return type(reference) is type(answer) and reference == answer


def same_number(one: Number, other: Number) -> bool:
    """Compare numbers exactly, except for decimal rounding and the noise of a double.

    A percentage equals its number, or a hundredth of it.
    """
    if one.measure and other.measure and one.measure != other.measure:
        return False
    if one.percent == other.percent:
        return _close(one, other)
    share, plain = (one, other) if one.percent else (other, one)
    return _close(share, plain) or _close(_hundredth(share), plain)


def _hundredth(number: Number) -> Number:
    place = None if number.place is None else number.place / 100
    return replace(number, value=number.value / 100, place=place)


def _close(one: Number, other: Number) -> bool:
    return one.value == other.value or _stands_for(one, other) or _stands_for(other, one)


def _stands_for(rounded: Number, exact: Number) -> bool:
    if rounded.place is None:
        return False
    if not _is_finite(exact.value):
        return rounded.digits >= ENOUGH_DIGITS and abs(rounded.value - exact.value) < rounded.place
    noisy = DOUBLE_DIGITS < rounded.digits <= DOUBLE_DIGITS + 2 and 0 < exact.digits <= DOUBLE_DIGITS
    kept = rounded.place * 10 ** (rounded.digits - DOUBLE_DIGITS) if noisy else rounded.place
    return noisy and round(rounded.value / kept) * kept == exact.value


def _is_finite(value: Fraction) -> bool:
    """Return whether the value has a finite decimal expansion."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def _same_formula(reference: Number | Formula, answer: Number | Formula, compare: Compare) -> bool:
    written = [squeezed(each.latex) for each in (reference, answer) if isinstance(each, Formula)]
    return (len(written) == 2 and written[0] == written[1]) or compare(reference, answer)


def _same_items(reference: Items, answer: Items, compare: Compare) -> bool:
    if len(reference.members) != len(answer.members):
        return False
    kinds = {reference.opening + reference.closing, answer.opening + answer.closing}
    if kinds <= {"", "{}"} and len(reference.members) <= MOST_SHUFFLED:
        return _in_any_order(reference.members, answer.members, compare)
    if len(kinds - {""}) > 1 or kinds == {"", "[)"} or kinds == {"", "(]"}:
        return False
    return all(same(one, other, compare) for one, other in zip(reference.members, answer.members, strict=True))


def _in_any_order(reference: Sequence[Reading], answer: Sequence[Reading], compare: Compare) -> bool:
    left = list(answer)
    for one in reference:
        place = next((index for index, other in enumerate(left) if same(one, other, compare)), None)
        if place is None:
            return False
        del left[place]
    return not left
