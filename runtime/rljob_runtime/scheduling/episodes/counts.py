"""Counts: turns, tokens and forks of an attempt, of what is stored of it.

A request adds its given tokens to the tree before its turn is committed. Where the turn is dropped, they belong to no
turn, and do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rljob_runtime.scheduling.episodes.node import ROOT, Node


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
