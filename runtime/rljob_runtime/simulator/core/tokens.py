"""Tokens: contents of simulated responses, a function of (response, weight version, position).

Sums are the same on any replica, and a trainer can tell which weights generated them.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from functools import cache

from rljob_runtime.protocols.trajectory import TrajectoryKey

VOCABULARY = 32_000
_PERIOD = 8191
_STRIDE = 1009


Plain = int | str | tuple["Plain", ...]


def digest(*parts: Plain) -> int:
    """Return a number that depends on the parts only, not on class names."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def phase(key: TrajectoryKey, version: int) -> int:
    """Return where in the endless text a response starts; it differs between versions."""
    source = (key.prompt.source,) if key.prompt.source else ()
    return (digest("tokens", *source, key.prompt.epoch, key.prompt.index, key.sample) + version * _STRIDE) % _PERIOD


def text(phase: int, start: int, end: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return tokens `start` to `end` of a response and their log-probabilities."""
    tokens, logprobs = _book(1 + (phase + end) // _PERIOD)
    return tokens[phase + start : phase + end], logprobs[phase + start : phase + end]


@cache
def _book(periods: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    drawn = random.Random(0)
    tokens = [drawn.randrange(VOCABULARY) for _ in range(_PERIOD)]
    # In float32, as engines compute them.
    logprobs = array("f", [-token / VOCABULARY for token in tokens])
    return tuple(tokens * periods), tuple(logprobs * periods)
