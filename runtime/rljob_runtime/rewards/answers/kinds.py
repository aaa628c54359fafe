"""Kinds of answers: the plain values that an answer is read as."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Number:
    """A number.

    `digits` and `place` are `digits` and `unit` of `arithmetic.Literal` when it is a literal. `measure` is its unit, or
    "".
    """

    value: Fraction
    digits: int = 0
    place: Fraction | None = None
    percent: bool = False
    measure: str = ""


@dataclass(frozen=True)
class Infinite:
    """Infinity.

    `sign` is 1 or -1.
    """

    sign: int


@dataclass(frozen=True)
class Based:
    """Digits with a written base."""

    digits: str
    base: str


@dataclass(frozen=True)
class Fields:
    """A time, a ratio or a date: numbers side by side.

    `sort` is ":" or "/".
    """

    sort: str
    numbers: tuple[Fraction, ...]
    half: str = ""
    """am or pm."""


@dataclass(frozen=True)
class Span:
    """A range from one number to a larger one."""

    low: Number
    high: Number


@dataclass(frozen=True)
class Items:
    """A list or an interval.

    Without brackets, or in {}, its members have any order; in () and [] their order counts. Different brackets make an
    interval.
    """

    opening: str
    closing: str
    members: tuple[Reading, ...]


@dataclass(frozen=True)
class Union:
    """A union of sets, in any order."""

    members: tuple[Reading, ...]


@dataclass(frozen=True)
class Named:
    """An equation with a name on its left side: x = 5 of a `letter`, f(2) = 5 of a term."""

    name: str
    value: Reading
    letter: bool
    latex: str
    """The complete equation."""


@dataclass(frozen=True)
class Choice:
    """A letter and its value: (C) 12."""

    letter: str
    value: Reading


@dataclass(frozen=True)
class Words:
    """Text without case (except of a single letter), punctuation and extra white space."""

    text: str


@dataclass(frozen=True)
class Formula:
    """LaTeX of no other kind."""

    latex: str


@dataclass(frozen=True)
class Huge:
    """A value beyond a bound of size.

    It equals only the same text.
    """

    text: str


Reading = Number | Infinite | Based | Fields | Span | Items | Union | Named | Choice | Words | Formula | Huge
