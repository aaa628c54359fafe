"""Turn priority: the order in which an engine computes the turns that wait for it.

Turns of started episodes go first: the engine holds their prefixes, which first turns would evict, and an episode that
ends releases a runner. Of started episodes the oldest goes first, so that none starves. A first turn waits no longer
than the started episodes of its replica need, and no replica starts others meanwhile.
"""

from __future__ import annotations

FIRST_TURN = 0
"""Priority of first turns, and of responses of one turn: the engine serves them as they arrive."""
TICKS_A_SECOND = 1000
NEVER = 1 << 53
"""A time in ticks that no episode reaches."""


def turn_priority(started: float, stored_turns: int) -> int:
    """Return the priority of an episode's next turn. The lowest value goes first.

    `started`: seconds of the epoch at which the episode began. `stored_turns`: its turns that are stored.

    >>> turn_priority(7.0, 0)
    0
    >>> turn_priority(7.0, 1) < turn_priority(8.5, 4) < turn_priority(1e9, 1) < 0
    True
    """
    return round(started * TICKS_A_SECOND) - NEVER if stored_turns else FIRST_TURN
