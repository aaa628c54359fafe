"""Visible text: a model's text for a terminal, which must not follow it."""

from __future__ import annotations

import unicodedata

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
"""Control characters have pictures in Unicode."""


def visible(text: str) -> str:
    """Return the text with its control characters as pictures; lines and tabs stay.

    Characters that reorder the text around them, and other invisible ones, become their code.

    >>> visible("a\\x1b[2Jb")
    'a␛[2Jb'
    """
    return "".join(one if one in "\n\t" or not _hidden(one) else _shown(one) for one in text)


def _hidden(one: str) -> bool:
    return unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co") and one != "\u200d"


def _shown(one: str) -> str:
    code = ord(one)
    return chr(_PICTURES[code]) if code in _PICTURES else f"<U+{code:04X}>"
