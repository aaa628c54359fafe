"""Nesting: API servers accept objects of 10,000 levels, which is more than Python's JSON reader follows by default."""

from __future__ import annotations

import sys

_LEVELS = 30_000
"""Levels of recursion that reading such an object may need."""


def allow_nesting() -> None:
    """Let this process read every object of an API server.

    An object that it cannot read would end the watch of all.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _LEVELS))
