"""Nesting: API servers take objects of 10,000 levels, which is more than Python's JSON reader follows by itself."""

from __future__ import annotations

import sys

_LEVELS = 30_000
"""Of recursion, which reading such an object may need."""


def allow_nesting() -> None:
    """Let this process read every object that an API server may show it. One that it gives up on would end the watch
    of all."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _LEVELS))
