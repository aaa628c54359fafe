"""Final answer: locates the final answer in a response.

The first rule that applies decides. Of several matches, the last counts:

1. a box: \\boxed{…}. A box that is never closed was cut off and has no answer;
2. a line that begins with ####, as in GSM8K;
3. the text after "answer is", "answer:", or the Chinese for them, to the end of its sentence;
4. the text itself, if it is one short line;
5. the last formula ($…$, \\(…\\), \\[…\\]) or number in the text, whichever comes later.

Each rule scans the text once, because a model wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rljob_runtime.rewards.answers.notation import last_match
from rljob_runtime.rewards.answers.numerals import last_numeral

LONGEST_LINE = 200
"""Characters of a response that may be an answer as a whole."""
LONGEST_SENTENCE = 8_000
"""Characters that are scanned after "answer is"."""

_BOX = re.compile(r"\\f?boxed(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LINE = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)", re.MULTILINE)
_ANCHOR = re.compile(
    r"\banswers?\b[ \t*]{0,8}(?:(?:to the [^\n.:]{1,80}?|choice|option) )?"
    r"(?:(?:would|will|should|must) be|is|are|:|=)[ \t]{0,8}:?"
    r"|答案[ \t]*(?:应该|應該|就)?(?:是|为|為|：|:|=)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.;!?](?=\s|$)|[。；！？\n]|\s(?=(?:because|since|so|which|where|as|but)\b)", re.IGNORECASE)
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]+)\$\$"
    r"|(?<![\\$\w])\$(?![\s$])(?P<inline>[^$\n]{1,400}?)(?<![\s\\])\$(?![\d$])"
    r"|\\\((?P<round>[^\n]{1,400}?)\\\)"
    r"|\\\[(?P<square>.{1,800}?)\\\]",
    re.DOTALL,
)
_PROSE = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{3,}(?![a-zA-Z])[ ,]")


@dataclass(frozen=True)
class Final:
    """An answer as it is written.

    `marked` says that the response marks it as its answer. `number` is the last number in it, if it is prose.
    """

    text: str
    marked: bool
    number: str | None = None


def final_answer(response: str) -> Final | None:
    """Return the final answer, or None."""
    if (box := _last_box(response)) is not None:
        return Final(box, marked=True) if box.strip() else None
    if (line := last_match(_LINE, response)) is not None:
        return _prose(line[1], marked=True)
    if (anchor := last_match(_ANCHOR, response)) is not None and (sentence := _sentence(response[anchor.end() :])):
        return _prose(sentence, marked=True)
    text = response.strip()
    if not text:
        return None
    if len(text) <= LONGEST_LINE and "\n" not in text and _last_formula(text) is None:
        return _prose(text, marked=False)
    return _in_passing(text)


def _last_box(text: str) -> str | None:
    """Return the content of the last box, empty if it is cut off, or None without a box."""
    box = last_match(_BOX, text)
    if box is None:
        return None
    if not text.startswith("{", box.end()):
        return text[box.end() : box.end() + 1]
    depth = 0
    for match in _BRACE.finditer(text, box.end()):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return text[box.end() + 1 : match.start()]
    return ""


def _sentence(text: str) -> str:
    """Return the text up to the end of its first sentence.

    A formula at the start is the sentence.
    """
    text = text.lstrip(" \t*\n")[:LONGEST_SENTENCE]
    formula = _FORMULA.match(text)
    if formula is not None and not _is_prose(formula):
        return formula[0]
    end = _SENTENCE.search(text)
    return text[: end.start() if end else None].strip(" \t*")


def _prose(text: str, marked: bool) -> Final:
    formula = _last_formula(text)
    if formula is not None:
        text = formula[0]
    return Final(text.strip(" \t*"), marked, last_numeral(text))


def _last_formula(text: str) -> re.Match[str] | None:
    found = None
    for match in _FORMULA.finditer(text):
        if not _is_prose(match):
            found = match
    return found


def _is_prose(match: re.Match[str]) -> bool:
    """Return whether the match is prose between two dollar signs of amounts of money."""
    return match["inline"] is not None and _PROSE.search(match["inline"]) is not None


def _in_passing(text: str) -> Final | None:
    formula = _last_formula(text)
    behind = text[formula.end() :] if formula is not None else text
    number = last_numeral(behind)
    if number is not None:
        return Final(number, marked=False, number=number)
    if formula is not None:
        return _prose(formula[0], marked=False)
    return Final(text.rsplit("\n", 1)[-1].strip(), marked=False)
