"""Which of the last rounds tell of the next ones, and what each prompt of them is known by.

A prompt counts once, as the cursor drew it. If it lost its race and came to its long round since, the long round knows
its lengths whole; if its short round is too old to be looked at, its long round says nothing of what the cursor draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rljob_runtime.scheduling.lengths import SeenPrompt
from rljob_runtime.scheduling.trajectory import PromptKey

WINDOW = 8
"""The last rounds that are looked at."""
WHOLE_ROUNDS = 2
"""Further rounds of fresh prompts in which nothing was stopped: they alone know the tail."""
REACH = 32
"""How far back those may lie: lengths change as the model learns."""


@dataclass(frozen=True)
class PastRound:
    """`prompts`: all that were drawn. `queued`: those of them that a former round had left."""

    step: int
    prompts: dict[PromptKey, SeenPrompt]
    queued: frozenset[PromptKey] = frozenset()


def looked_at(last: int, whole: Iterable[int]) -> tuple[int, ...]:
    """The rounds to look at after round `last`, rising; `whole`: rounds of fresh prompts in which nothing was stopped.

    >>> looked_at(20, [1, 2, 3, 19]), looked_at(3, [1, 2])
    ((2, 3, 13, 14, 15, 16, 17, 18, 19, 20), (1, 2, 3))
    """
    recent = range(max(1, last - WINDOW + 1), last + 1)
    older = [step for step in sorted(whole) if last - REACH < step < recent.start]
    return (*older[-WHOLE_ROUNDS:], *recent)


def population(rounds: Collection[PastRound]) -> list[SeenPrompt]:
    """The prompts as the cursor drew them, each by what was seen of it last. `rounds` by rising step."""
    seen: dict[PromptKey, SeenPrompt] = {}
    for one in rounds:
        for key, prompt in one.prompts.items():
            if key not in one.queued or key in seen:
                seen[key] = prompt
    return list(seen.values())
