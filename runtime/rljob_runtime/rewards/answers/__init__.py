"""Answers: finds the final answer of a mathematical response, reads it, and compares it with the reference.

The rules are in docs/guides/data-and-rewards.md ("Mathematics").
"""

from __future__ import annotations

from functools import lru_cache

from rljob_runtime.rewards.answers.arithmetic import TooLarge
from rljob_runtime.rewards.answers.equality import same
from rljob_runtime.rewards.answers.final import final_answer
from rljob_runtime.rewards.answers.kinds import Formula, Items, Named, Number, Reading, Union, Words
from rljob_runtime.rewards.answers.numerals import UnusableReference, final_line
from rljob_runtime.rewards.answers.readings import NoAnswer, read
from rljob_runtime.rewards.answers.symbolic import agree, parsed

__all__ = ["UnusableReference", "matches", "reference"]


def matches(answer: str, response: str) -> bool:
    """Return whether the response's final answer equals the reference `answer`.

    Raises `UnusableReference`.
    """
    expected, final = reference(answer), final_answer(response)
    if final is None:
        return False
    try:
        given = read(final.text)
        if same(expected, given, agree):
            return True
        # Prose may surround a number: "I think it's 42 because 6*7=42."
        if final.number is None or not isinstance(expected, Number) or not _has_words(given):
            return False
        return same(expected, read(final.number), agree)
    except (NoAnswer, TooLarge):
        return False


@lru_cache(maxsize=4096)
def reference(answer: str) -> Reading:
    """Read a reference answer.

    Raises `UnusableReference`.
    """
    text = final_line(answer)
    if "boxed" in text and (boxed := final_answer(text)) is not None:
        text = boxed.text
    try:
        found = read(text)
        for formula in _formulas(found):
            if not parsed(formula.latex):
                raise UnusableReference(
                    f"the reference answer {text[:80]!r} cannot be parsed: no number, list, words or formula"
                )
    except NoAnswer as error:
        raise UnusableReference(f"the reference answer {text[:80]!r} contains no answer") from error
    except TooLarge as error:
        raise UnusableReference(f"the reference answer {text[:80]!r} is too large to be compared: {error}") from error
    return found


def _has_words(reading: Reading) -> bool:
    return isinstance(reading, Words) or (isinstance(reading, Items) and any(map(_has_words, reading.members)))


def _formulas(reading: Reading) -> list[Formula]:
    match reading:
        case Formula():
            return [reading]
        case Items(_, _, members) | Union(members):
            return [formula for member in members for formula in _formulas(member)]
        case Named(_, value):
            return _formulas(value)
    return []
