"""Readings: parses an answer as a number, a date, a list, an interval, words, or a formula.

The kinds are tried in the order of `_KINDS`. Any other text is a formula, which math-verify parses. Each reading is a
plain value, so that `equality` compares readings without the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from rljob_runtime.rewards.answers.arithmetic import LITERAL, Literal, NoArithmetic, TooLarge, evaluate, literal
from rljob_runtime.rewards.answers.kinds import (
    Based,
    Choice,
    Fields,
    Formula,
    Huge,
    Infinite,
    Items,
    Named,
    Number,
    Reading,
    Span,
    Union,
    Words,
)
from rljob_runtime.rewards.answers.measures import amount
from rljob_runtime.rewards.answers.notation import parts, plain, unwrapped

LONGEST = 8_000
"""Characters of an answer. A longer text is no answer."""
MOST_DEPTH = 6
"""Nested lists."""


class NoAnswer(ValueError):
    """The text contains no answer."""


_COMMA = re.compile(r",|;|(?:\\text\s*\{\s*)?(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])(?:\s*\})?|[和或]")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_RELATION = re.compile(r"\\(?:le|ge|lt|gt)(?![a-zA-Z])\s*|<=|>=|<|>")
_JOINED = re.compile(r"\\cup(?![a-zA-Z])\s*|(?<=[)\]}])\s*U\s*(?=[\[({\\])")
_NAME = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?")
_BRACKETS = {"(": ")]", "[": ")][", "]": "[])", "{": "}", "\\{": "\\}"}
_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?\s*(?:_\s*\{?(?:\\text\s*\{)?\s*(\w+)\s*\}{0,2}|base (\w+))")
_HALF = re.compile(r"\s*(?:\\text\s*\{\s*)?\b([apAP])\.?\s?[mM]\.?(?:\s*\})?$")
_DATE = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})", re.ASCII)
_SPAN = re.compile(
    r"(?P<low>[-+]?\\?\$?[\d.,]*\d%?)\s*(?:-{1,3}|~|\bto\b|至|到)\s*(?P<high>[-+]?\\?\$?[\d.,]*\d.*)", re.ASCII
)
_BETWEEN = re.compile(r"\\text\s*\{\s*(-{1,3}|to)\s*\}")
_LETTER = re.compile(
    r"\(([A-Z])\)[\s:.]*((?!and\b|or\b)[^\s,;:.)].*)|([A-Z])[.:)]\s+((?!and\b|or\b)[^\s,;:.)].*)", re.DOTALL
)
_WRAPPED = re.compile(r"\\text\s*\{([^{}]*)\}")
_SMALL_WORDS = "[Ii]s|[Ii]t|[Ss]o|[Ww]e|[Oo]f|[Bb]e|[Bb]y|[Mm]y|[Nn]o|[Tt]o|[Ii]f|[Oo]n|[Aa]t"
_WORD = re.compile(rf"(?<![\\a-zA-Z])(?:[a-zA-Z]{{3,}}|{_SMALL_WORDS})(?![a-zA-Z])|[^\W\d_a-zA-Z]")
_CAPITALS = re.compile(r"[A-Za-z]*[A-Z][A-Za-z]*")
_LABEL = re.compile(r"(?:\\text\s*\{[^{}]*\}|[a-zA-Z ]{2,40})\s*")
_COMMAND = re.compile(r"\\[a-zA-Z]+|[\^_{}]")
_PUNCTUATION = re.compile(r"[^\w]+")
MATH_NAMES = frozenset(
    [
        "pi",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "exp",
        "sqrt",
        "inf",
        "infinity",
        "mod",
        "gcd",
        "lcm",
        "max",
        "min",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "frac",
        "binom",
        "text",
        "and",
        "det",
    ]
)
"""Words that occur in formulas."""
_CONSTANTS = frozenset({"\\infty", "\\pi", "e"})
_INFINITE = {"\\infty": 1, "infinity": 1, "inf": 1, "oo": 1}


def read(text: str) -> Reading:
    """Read the text.

    Raises `NoAnswer`.
    """
    if len(text) > LONGEST:
        raise NoAnswer(f"an answer of {len(text)} characters")
    return _read(plain(text), 0)


def squeezed(text: str) -> str:
    """Return the text without white space."""
    return "".join(text.split())


def _read(text: str, depth: int) -> Reading:
    text = unwrapped(text)
    if not text or depth > MOST_DEPTH:
        raise NoAnswer("the text is empty")
    try:
        for kind in _KINDS:
            if (found := kind(text, depth)) is not None:
                return found
    except TooLarge:
        return Huge(squeezed(text))
    return Formula(text)


def _number(text: str, depth: int) -> Number | None:
    found = amount(text)
    if found is None:
        return None
    core, percent, measure, factor = found
    negative, unsigned = core.startswith("-"), core.lstrip("+-").strip()
    match = LITERAL.fullmatch(unsigned)
    if match is not None and len(core) - len(core.lstrip("+-")) <= 1:
        written = literal(match)
        return Number(*_signed(written, negative, factor), percent, measure)
    try:
        return Number(evaluate(core) * factor, percent=percent, measure=measure)
    except NoArithmetic:
        return None


def _signed(written: Literal, negative: bool, factor: int) -> tuple[Fraction, int, Fraction | None]:
    value = -written.value if negative else written.value
    return value * factor, written.digits, None if written.unit is None else written.unit * factor


def _infinite(text: str, depth: int) -> Infinite | None:
    sign = _INFINITE.get(text.lstrip("+-").strip())
    return None if sign is None else Infinite(-1 if text.startswith("-") else 1)


def _equation(text: str, depth: int) -> Reading | None:
    """Read x = 5, and the last part of 2 + 3 = 5.

    An equation with a formula on its right side is a formula.
    """
    sides = parts(text, _EQUALS)
    if sides is None or len(sides) < 2 or not sides[-1].strip():
        return None
    *before, last = (side.strip() for side in sides)
    value = _read(last, depth + 1)
    if isinstance(value, Formula):
        return None
    if _LABEL.fullmatch(before[0]) or all(map(_is_number, before)):
        return value
    return Named(squeezed(before[0]), value, _NAME.fullmatch(before[0]) is not None and len(before) == 1, text)


def _is_number(text: str) -> bool:
    try:
        evaluate(text)
    except NoArithmetic:
        return False
    return True


def _inequality(text: str, depth: int) -> Items | None:
    """Read x < 3 or 0 < x <= 1 as an interval.

    A letter must be on one side and on no other.
    """
    sides = parts(text, _RELATION)
    if sides is None or len(sides) not in (2, 3):
        return None
    relations = [relation.strip() for relation in _RELATION.findall(text)]
    names = [bool(_NAME.fullmatch(side.strip())) and side.strip() not in _CONSTANTS for side in sides]
    downward = {">", ">=", "\\ge", "\\gt"}
    if len({relation in downward for relation in relations}) != 1 or len(relations) != len(sides) - 1:
        return None
    if relations[0] in downward:
        sides, names, relations = sides[::-1], names[::-1], relations[::-1]
    closed = [relation in ("<=", ">=", "\\le", "\\ge") for relation in relations]
    match names:
        case [True, False]:
            return Items("(", "])"[not closed[0]], (Infinite(-1), _read(sides[1], depth + 1)))
        case [False, True]:
            return Items("[("[not closed[0]], ")", (_read(sides[0], depth + 1), Infinite(1)))
        case [False, True, False]:
            ends = _read(sides[0], depth + 1), _read(sides[2], depth + 1)
            return Items("[("[not closed[0]], "])"[not closed[1]], ends)
    return None


def _based(text: str, depth: int) -> Based | None:
    match = _BASE.fullmatch(text)
    if match is None:
        return None
    digits, base = match[1], (match[2] or match[3]).lower()
    if not any(map(str.isdigit, digits)) and base != "16":  # a letter with an index is no number
        return None
    return Based(digits.lstrip("0").upper() or "0", base)


def _fields(text: str, depth: int) -> Fields | None:
    if (date := _DATE.fullmatch(text)) is not None:
        return Fields("/", tuple(Fraction(int(date[group])) for group in (1, 3, 4)))
    half = _HALF.search(text)
    numbers = (text[: half.start()] if half else text).split(":")
    if not (1 if half else 2) <= len(numbers) <= 4:
        return None
    try:
        found = tuple(map(evaluate, numbers))
    except NoArithmetic:
        return None
    if half is None:
        return Fields(":", found)
    return Fields(":", (*found, Fraction(0)) if len(found) == 1 else found, half[1].lower())


def _span(text: str, depth: int) -> Span | None:
    match = _SPAN.fullmatch(text) or _SPAN.fullmatch(_BETWEEN.sub(r"\1", text))
    if match is None:
        return None
    low, high = _number(match["low"], depth), _number(match["high"], depth)
    if low is None or high is None or not (low.digits and high.digits):
        return None
    return Span(low, high) if low.value < high.value else None


def _both_signs(text: str, depth: int) -> Items | None:
    if text.count("\\pm") != 1:
        return None
    before, after = text.split("\\pm")
    return Items("", "", tuple(_read(f"{before}{sign}{after.strip()}", depth + 1) for sign in "+-"))


def _union(text: str, depth: int) -> Union | None:
    sets = parts(text, _JOINED)
    return Union(tuple(_read(each, depth + 1) for each in sets)) if sets is not None and len(sets) > 1 else None


def _list(text: str, depth: int) -> Reading | None:
    text = re.sub(r"^[a-zA-Z]\s*\\in(?![a-zA-Z])\s*", "", text)
    opening = "\\{" if text.startswith("\\{") else text[0]
    for closing in ("\\}",) if opening == "\\{" else _BRACKETS.get(opening, ""):
        inner = text[len(opening) : -len(closing)]
        if text.endswith(closing) and len(text) >= len(opening + closing):
            members = parts(inner, _COMMA)
            if members is not None:
                return _bracketed(opening, closing, members, depth)
    members = parts(text, _COMMA)
    if members is None or len(members) < 2:
        return None
    given = [member for member in members if member.strip()]
    return Items("", "", tuple(_read(member, depth + 1) for member in given)) if len(given) > 1 else None


def _bracketed(opening: str, closing: str, members: list[str], depth: int) -> Reading | None:
    if len(members) == 1:
        if members[0].strip():
            return _read(members[0], depth + 1)
        return Formula("\\emptyset") if opening in ("\\{", "{") else None
    if any(not member.strip() for member in members):
        return None
    if opening == "\\{" or opening == "{":
        opening, closing = "{", "}"
    opening, closing = {"]": "("}.get(opening, opening), {"[": ")"}.get(closing, closing)
    return Items(opening, closing, tuple(_read(member, depth + 1) for member in members))


def _choice(text: str, depth: int) -> Choice | None:
    match = _LETTER.fullmatch(_WRAPPED.sub(r"\1", text))
    if match is None:
        return None
    return Choice(match[1] or match[3], _read(match[2] or match[4], depth + 1))


def _words(text: str, depth: int) -> Reading | None:
    if (wrapped := _WRAPPED.fullmatch(text)) is not None:
        inner = _read(wrapped[1], depth + 1)
        return _as_words(wrapped[1]) if isinstance(inner, Formula) else inner
    bare = _WRAPPED.sub(r" \1 ", text)
    if _COMMAND.search(bare) is not None:
        return None
    if any(word not in MATH_NAMES for word in _WORD.findall(bare)) or _CAPITALS.fullmatch(bare.strip()):
        return _as_words(bare)
    return None


def _as_words(text: str) -> Words | None:
    words = _PUNCTUATION.sub(" ", text.replace("'", "").replace(".", "")).strip()
    return None if not words else Words(words if len(words) == 1 else words.casefold())


_KINDS: tuple[Callable[[str, int], Reading | None], ...] = (
    _fields,
    _span,
    _number,
    _infinite,
    _based,
    _both_signs,
    _union,
    _choice,
    _list,
    _inequality,
    _equation,
    _words,
)
