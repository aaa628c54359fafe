"""Limits: how far an episode may go, and which limit it reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EARLY_SECONDS = 5.0
"""A harness may say so long before its deadline that the time is over. After the loss of a coordinator the next one may
be on another machine, whose clock differs."""


class Limit(StrEnum):
    """A limit of an episode, as it stands in the reason of a truncated one."""

    TURNS = "turns"
    TOKENS = "tokens"
    SECONDS = "seconds"
    FORKS = "forks"


@dataclass(frozen=True)
class Limits:
    """The limits of an episode. None: no limit.

    `turns`: turns that may be opened; a retry opens none. `tokens`: tokens of all nodes, given and sampled, each
    counted once. Turns that run concurrently may each use what is left when they open, so it bounds the tokens of each
    sequence exactly, and those of all sequences up to the concurrent turns. `seconds`: from the start of the attempt.
    `forks`: branches beyond the first; siblings of concurrent requests count.
    """

    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    forks: int | None = None

    def reached(self, *, turns: int, seconds: float) -> Limit | None:
        """Return the limit that an episode of these turns and seconds has reached, whatever it asks for next."""
        if self.seconds is not None and seconds >= self.seconds:
            return Limit.SECONDS
        if self.turns is not None and turns >= self.turns:
            return Limit.TURNS
        return None

    def may_end(self, limit: Limit, *, turns: int, seconds: float) -> bool:
        """Return whether a limit may have ended a harness that has opened these turns in these seconds.

        >>> limits = Limits(turns=4, seconds=60.0)
        >>> [limits.may_end(Limit.TURNS, turns=count, seconds=1.0) for count in (3, 4)]
        [False, True]
        >>> [limits.may_end(Limit.SECONDS, turns=1, seconds=passed) for passed in (54.0, 55.0)]
        [False, True]
        """
        match limit:
            case Limit.TURNS:
                return self.turns is not None and turns >= self.turns
            case Limit.SECONDS:
                return self.seconds is not None and seconds >= self.seconds - EARLY_SECONDS
            case Limit.TOKENS:  # the gateway says so, which knows the prompt that was too long
                return self.tokens is not None
            case Limit.FORKS:
                return False

    def exceeded(self, *, tokens: int, forks: int) -> Limit | None:
        """Return the limit that a turn would exceed: `tokens` with its given ones and the first sampled one."""
        if self.forks is not None and forks > self.forks:
            return Limit.FORKS
        if self.tokens is not None and tokens > self.tokens:
            return Limit.TOKENS
        return None
