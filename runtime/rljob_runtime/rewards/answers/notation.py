"""Notation: converts LaTeX, Unicode and plain text of an answer into one spelling.

Later modules see only ASCII operators, `\\frac`, `^` and braces. Each step costs time proportional to the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque

MINUS = "-\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"
"""Hyphens, dashes and the minus sign. Each may stand before a number."""
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SIGNS = str.maketrans(
    {
        **dict.fromkeys(MINUS, "-"),
        **dict.fromkeys("×·⋅∗✕", "*"),
        **dict.fromkeys("÷∕⁄", "/"),
        "∪": r"\cup ",
        "∞": r"\infty ",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "°": r"^\circ ",
        "∅": r"\emptyset ",
        "。": ".",
        "、": ",",
        "\u00a0": " ",
    }
)
_REPLACED = [
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|mleft|mright|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?(?=[\s()\[\]{}|\\]|$)", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])", ""),
        (r"(?<=\d)(?:\{,\}|,\\!\s*|\\,|[\u2009\u202f])(?=\d{3}(?!\d))", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:times|cdot|ast)(?![a-zA-Z])\s*", "*"),
        (r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
        (r"\\div(?![a-zA-Z])\s*", "/"),
        (r"\\colon(?![a-zA-Z])\s*", ":"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])", r"\\le"),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])", r"\\ge"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\%|\s*\\?\bper\s?cent(?:age)?\b", "%"),
        (r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", "\N{DEGREE SIGN}"),
        (r"\\(?:text|math)(?:rm|bf|it|sf|tt|normal|up)\b|\\mbox\b", r"\\text"),
        (r"(?<=[\w)}])\*\*(?=[-+({\w])|(?<=[\d)}] )\*\* (?=[-+({\d])", "^"),
    )
]
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


def plain(text: str) -> str:
    """Convert the text into one spelling."""
    text = _RAISED.sub(lambda match: "^{" + "".join(map(_SUPERSCRIPTS.__getitem__, match[0])) + "}", text)
    text = _VULGAR.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]), text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS))
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return unwrapped(text)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of the pattern, in one pass."""
    found = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def unwrapped(text: str) -> str:
    """Remove the delimiters around a formula and a full stop at its end."""
    before = None
    while text != before:
        before = text
        text = text.strip().removesuffix(".").rstrip()
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if len(text) > len(opening + closing) and text == opening + inner + closing and opening not in inner:
                text = inner
    return text


def parts(text: str, separators: re.Pattern[str]) -> list[str] | None:
    """Split the text at separators outside of brackets.

    None when brackets do not match. `[0, 1)` matches.
    """
    found, depth, start, place = [], 0, 0, 0
    while place < len(text):
        escaped = text.startswith("\\", place)
        sign = text[place + escaped] if place + escaped < len(text) else ""
        if sign in "([{" and sign:
            depth += 1
        elif sign in ")]}" and sign:
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and (match := separators.match(text, place)):
            found.append(text[start:place])
            start = place = match.end()
            continue
        place += 1 + (escaped and sign in "()[]{}\\%$")
    found.append(text[start:])
    return found if depth == 0 else None
