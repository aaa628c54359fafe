"""Measures: separates a number from its currency, percent sign, unit or counter.

Units are optional, as in graders of MATH: 5 cm equals 5. Two written units must be equal.
"""

from __future__ import annotations

import re

_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_BEFORE = re.compile(rf"(?P<sign>[-+]?)\s*\\?(?P<currency>[{''.join(_CURRENCY)}])\s*(?P<core>.+)", re.DOTALL)
_CJK = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
_RAISED = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d))?"
_KNOWN = "cm|mm|km|kg|mg|ml|mL|dl|mph|kmh|ft|lbs?|oz|in|hrs?|mins?|secs?|ms|st|nd|rd|th|kWh|Hz|GB|MB|KB|Pa|°|°C|°F"
_BEHIND = re.compile(
    rf"(?P<core>.*[\d)}}!.])(?:\s*\\text\s*\{{(?P<wrapped>[^{{}}]*)\}}{_RAISED}\s*(?:/\s*\\text\s*\{{[^{{}}]*\}}{_RAISED})?"
    rf"|\s*(?P<counter>{_CJK})"
    rf"|\s*(?P<known>{_KNOWN}){_RAISED}"
    rf"|\s+(?P<letter>[mgshLl]){_RAISED}"
    rf"|\s*\\?(?P<sold>[{''.join(_CURRENCY)}])"
    rf"|\s+(?P<words>[a-zA-Z]{{2,}}(?:[ /.-]+[a-zA-Z]+){{0,4}})\.?{_RAISED})",
    re.DOTALL,
)
_NO_UNITS = frozenset(
    [
        "and",
        "or",
        "to",
        "pi",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "mod",
        "base",
        "choose",
        "times",
        "over",
        "plus",
        "minus",
    ]
)
_FACTORS = {
    "hundred": 100,
    "thousand": 1_000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
    "百": 100,
    "千": 1_000,
    "万": 10_000,
    "萬": 10_000,
    "亿": 10**8,
    "億": 10**8,
}
_ALIASES = {
    name: unit
    for unit, names in {
        "": "个 個 only unit",
        "cm": "centimeter centimetre",
        "mm": "millimeter millimetre",
        "km": "kilometer kilometre",
        "m": "meter metre",
        "g": "gram",
        "kg": "kilogram",
        "l": "liter litre",
        "ml": "milliliter millilitre",
        "s": "sec second",
        "min": "minute",
        "h": "hr hour",
        "ft": "foot feet",
        "in": "inch inches",
        "lb": "pound-mass lbs",
        "°": "degree deg",
        "dollar": "usd buck",
        "cent": "cents",
        "mph": "miles-per-hour",
    }.items()
    for name in names.split()
}


def amount(text: str) -> tuple[str, bool, str, int] | None:
    """Return (core, whether percent, unit, factor) of a text that may be a number.

    "$1.5 million" is ("1.5", False, "dollar", 1000000). None when the text after the number is no unit.
    """
    measure, factor = "", 1
    if (before := _BEFORE.fullmatch(text)) is not None:
        measure, text = _CURRENCY[before["currency"]], before["sign"] + before["core"]
    if text.endswith("%"):
        return text[:-1].rstrip().removesuffix("\\"), True, measure, factor
    if (behind := _BEHIND.fullmatch(text)) is not None:
        name = behind["wrapped"] or behind["counter"] or behind["words"]
        if name is None:
            name = behind["known"] or behind["letter"] or _CURRENCY[behind["sold"]]
        words = re.split(r"[\s./-]+", name.strip())
        if any(word.lower() in _NO_UNITS for word in words) or any(map(str.isdigit, name)):
            return None
        text = behind["core"]
        factor, words = _factor(words)
        measure = measure or unit(" ".join(words))
    return text, False, measure, factor


def _factor(words: list[str]) -> tuple[int, list[str]]:
    """Return the factor that a unit begins with, and the rest of the unit.

    5 million dollars are 5,000,000 dollars. (The Chinese for kilogram begins with the sign for a thousand.)
    """
    first = words[0].lower()
    if (by := _FACTORS.get(first.removesuffix("s"))) is not None:
        return by, words[1:]
    if first.startswith(("千克", "千米", "千瓦")):
        return 1, words
    by = _FACTORS.get(first[:1])
    return (1, words) if by is None else (by, [first[1:], *words[1:]])


def unit(name: str) -> str:
    """Return the canonical name of a unit.

    cm for Centimetres.
    """
    name = name.strip().casefold()
    singular = name if len(name) < 3 or name.endswith("ss") else name.removesuffix("s")
    return _ALIASES.get(name, _ALIASES.get(singular, singular))
