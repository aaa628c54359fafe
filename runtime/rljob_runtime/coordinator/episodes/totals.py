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
    later_prompt_tokens: int = 0
    """Prompt tokens of turns after the first one of their attempt, where the engine reports what it held of them."""
    held_prompt_tokens: int = 0
    """Those of them that the engine held already."""
    reencoded_tokens: int = 0
    """Sampled tokens that the gateway found in another form in the prompt of a later turn."""
    differing_traces: int = 0
    """Attempts whose environment states another trace than the store has."""
    interrupted_turns: int = 0
    """Turns that begin again with newer weights, because a load interrupted them or their replica was lost."""
    interrupted_tokens: int = 0
    """Tokens that had arrived of these turns."""
    load_wait_seconds: float = 0.0
    """Seconds that stored turns have waited for a load of weights."""
    tool_calls: int = 0
    """Calls of tools that runners reported."""
    resumed: int = 0
    """Attempts that another runner went on with. An attempt counts each time."""
    replayed_calls: int = 0
    """Calls that the next runner executed again, and that observed the same."""
    replayed_turns: int = 0
    """Turns that were given once more, to a program that runs again."""
    refused_replays: int = 0
    """Attempts that ended because another runner did not observe the same, or its program did not ask the same."""
    calls_executed_twice: int = 0
    """Stored calls of tools without a state that were executed again. It must be 0."""
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
            self.later_prompt_tokens - before.later_prompt_tokens,
            self.held_prompt_tokens - before.held_prompt_tokens,
            self.reencoded_tokens - before.reencoded_tokens,
            self.differing_traces - before.differing_traces,
            self.interrupted_turns - before.interrupted_turns,
            self.interrupted_tokens - before.interrupted_tokens,
            self.load_wait_seconds - before.load_wait_seconds,
            self.tool_calls - before.tool_calls,
            self.resumed - before.resumed,
            self.replayed_calls - before.replayed_calls,
            self.replayed_turns - before.replayed_turns,
            self.refused_replays - before.refused_replays,
            self.calls_executed_twice - before.calls_executed_twice,
            self.ends - before.ends,
            self.aborts - before.aborts,
        )
