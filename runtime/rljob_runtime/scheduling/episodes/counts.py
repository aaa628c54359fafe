"""Counts: turns, tokens and forks of an attempt, of what is stored of it.

A request adds its given tokens to the tree before its turn is committed. Where the turn is dropped, they belong to no
turn, and do not count.

Many forks are told: clients or templates seem to rewrite earlier messages then. A rewritten message begins a new
branch, and each branch is trained on. Nothing fails by that, but tokens double.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rljob_runtime.scheduling.episodes.node import ROOT, Node

LARGEST_SHARE = 0.05
"""Share of turns above which forks are told. Sub-agents and retries with other words fork now and then."""
LEAST_TURNS = 50
"""Fewer turns say little: two forks of them are near the share."""


@dataclass
class EpisodeStats:
    """Counts of one attempt."""

    turns: int = 0
    """Turns that are open or committed."""
    forks: int = 0
    """Turns that opened a branch beside an existing one."""
    retries: int = 0
    """Retries that were answered from a former turn."""
    late: int = 0
    """Results that came after their turn was committed, dropped or ended. They change nothing."""
    given_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all nodes."""
        return self.given_tokens + self.sampled_tokens


@dataclass(frozen=True)
class EpisodeCounts:
    """Counts of one attempt. Each token counts once, whatever branches share it."""

    turns: int
    forks: int
    given_tokens: int
    sampled_tokens: int


def episode_counts(nodes: Mapping[int, Node]) -> EpisodeCounts:
    """Count the turns of a tree, and what leads to them."""
    counted: set[int] = set()
    turns = [node for node in nodes.values() if node.is_sampled]
    for turn in turns:
        place = turn.id
        while place != ROOT and place not in counted:
            counted.add(place)
            place = nodes[place].parent
    found = [nodes[one] for one in counted]
    return EpisodeCounts(
        turns=len(turns),
        forks=sum(count - 1 for count in Counter(node.parent for node in found).values()),
        given_tokens=sum(len(node.token_ids) for node in found if not node.is_sampled),
        sampled_tokens=sum(len(node.token_ids) for node in turns),
    )


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
