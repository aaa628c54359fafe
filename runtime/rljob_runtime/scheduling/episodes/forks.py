"""Forks: whether the turns of episodes branch so often that clients or templates seem to rewrite earlier messages.

A rewritten message begins a new branch, and each branch is trained on. Nothing fails by that, but tokens double.
"""

from __future__ import annotations

LARGEST_SHARE = 0.05
"""Share of turns above which forks are told. Sub-agents and retries with other words fork now and then."""
LEAST_TURNS = 50
"""Fewer turns say little: two forks of them are near the share."""


def told_forks(turns: int, forks: int) -> str | None:
    """Return the warning about the forks of some turns; None if they are few.

    >>> told_forks(100, 5), told_forks(49, 49)
    (None, None)
    """
    if turns < LEAST_TURNS or forks <= LARGEST_SHARE * turns:
        return None
    return (
        f"{forks} of {turns} turns since the round before opened a branch beside an existing one. Their clients or the "
        "template rewrite earlier messages, and each branch is trained on. Let clients send what the gateway answered "
        "as it is. With sub-agents such branches are right"
    )
