"""Examples of property tests: all of them in `make test-all`, `make unit` and for mutants, a quarter in `make test`."""

from __future__ import annotations

import hypothesis

DEFAULT = 100
"""Of a test that names no number, in every profile but the quick one."""
QUICK = "quick"
"""The profile of a run that leaves slow rows out."""
_SHARE, _LEAST = 4, 5


def examples(number: int) -> int:
    """Return how many of so many examples the current profile draws."""
    if hypothesis.settings.get_current_profile_name() != QUICK:
        return number
    return max(number // _SHARE, _LEAST)


def load_quick(parent: str) -> None:
    """Make the quick profile, a child of another one, the current one."""
    settings = hypothesis.settings.get_profile(parent)
    hypothesis.settings.register_profile(QUICK, settings, max_examples=DEFAULT // _SHARE)
    hypothesis.settings.load_profile(QUICK)
