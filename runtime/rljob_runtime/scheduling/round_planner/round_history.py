"""Which of the last rounds tell of the next ones, and what each prompt of them is known by.

A prompt counts once, as the cursor drew it. If it lost its race and came to its long round since, the long round knows
its lengths whole; if its short round is too old to be looked at, its long round says nothing of what the cursor draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_planner.length_model import PromptLengths

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
    prompts: dict[PromptKey, PromptLengths]
    queued: frozenset[PromptKey] = frozenset()


def history_start(rounds: Iterable[tuple[int, float, float | None]]) -> int:
    """The first round whose lengths are believed: the last of these (step, measured seconds, and the seconds that what
    was believed of lengths explains) that took longer than is explained; 0 without any. Rounds before it tell of
    another job.

    >>> history_start([(3, 50.0, None), (4, 90.0, 60.0), (5, 40.0, 60.0)]), history_start([(4, 50.0, 60.0)])
    (4, 0)
    """
    return max((step for step, seconds, most in rounds if most is not None and seconds > most), default=0)


def rounds_considered(last: int, whole: Iterable[int], since: int = 0) -> tuple[int, ...]:
    """The rounds to look at after round `last`, rising, none before `since`; `whole`: rounds of fresh prompts in which
    nothing was stopped.

    >>> rounds_considered(20, [1, 2, 3, 19]), rounds_considered(3, [1, 2])
    ((2, 3, 13, 14, 15, 16, 17, 18, 19, 20), (1, 2, 3))
    >>> rounds_considered(20, [1, 2, 3, 19], since=3), rounds_considered(20, [3], since=19)
    ((3, 13, 14, 15, 16, 17, 18, 19, 20), (19, 20))
    """
    recent = range(max(1, since, last - WINDOW + 1), last + 1)
    older = [step for step in sorted(whole) if max(since - 1, last - REACH) < step < recent.start]
    return (*older[-WHOLE_ROUNDS:], *recent)


def population(rounds: Collection[PastRound]) -> list[PromptLengths]:
    """The prompts as the cursor drew them, each by what was seen of it last. `rounds` by rising step."""
    seen: dict[PromptKey, PromptLengths] = {}
    for one in rounds:
        for key, prompt in one.prompts.items():
            if key not in one.queued or key in seen:
                seen[key] = prompt
    return list(seen.values())
