"""Reward of a long episode: the share of the calculator's results that are even, and never 0.

No episode that was played to its end has the reward 0, so a 0 in the store is one of a failure. It runs in the pods of
runners, beside the calculator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def score(record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], answer: str) -> float:
    """Return (1 + even results) / (1 + results).

    >>> results = [{"role": "tool", "content": text} for text in ("8", "-3", "error: no number", "12")]
    >>> score({}, [{"role": "user", "content": "?"}, *results], "")
    0.6
    >>> score({}, [], "")
    1.0
    """
    results = [message["content"] for message in messages if message["role"] == "tool"]
    return (1 + sum(result[-1:] in tuple("02468") for result in results)) / (1 + len(results))
