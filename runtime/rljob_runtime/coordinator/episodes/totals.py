"""Book totals: what a coordinator has counted of all attempts, training's and evaluations'."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState


@dataclass
class BookTotals:
    """Counts of all attempts of this coordinator."""

    attempts: int = 0
    turns: int = 0
    forks: int = 0
    retries: int = 0
    interrupted_turns: int = 0
    """Turns that begin again with newer weights, because a load interrupted them or their replica was lost."""
    interrupted_tokens: int = 0
    """Tokens that had arrived of these turns."""
    load_wait_seconds: float = 0.0
    """Seconds that stored turns have waited for a load of weights."""
    ends: Counter[EndState] = field(default_factory=Counter)
    aborts: Counter[AbortCause] = field(default_factory=Counter)

    def copy(self) -> BookTotals:
        """Return the counts of now, which later ones do not change."""
        return replace(self, ends=self.ends.copy(), aborts=self.aborts.copy())

    def since(self, before: BookTotals) -> BookTotals:
        """Return what was counted since `before`."""
        return BookTotals(
            self.attempts - before.attempts,
            self.turns - before.turns,
            self.forks - before.forks,
            self.retries - before.retries,
            self.interrupted_turns - before.interrupted_turns,
            self.interrupted_tokens - before.interrupted_tokens,
            self.load_wait_seconds - before.load_wait_seconds,
            self.ends - before.ends,
            self.aborts - before.aborts,
        )
