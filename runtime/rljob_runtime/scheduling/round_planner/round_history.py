"""Round history: selects the past rounds that predict the next ones, and the record of each of their prompts.

A prompt counts once, as the cursor drew it. If it lost its race and had its long round since, the long round has its
complete lengths. If its short round is too old, its long round is ignored: it is no sample of what the cursor draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_planner.length_model import PromptLengths

WINDOW = 8
"""Number of latest rounds to consider."""
WHOLE_ROUNDS = 2
"""Number of additional rounds of fresh prompts without a stopped response: only they contain the tail."""
REACH = 32
"""How far back those may lie: lengths change as the model learns."""


@dataclass(frozen=True)
class PastRound:
    """A past round. `prompts`: all that were drawn. `queued`: those that an earlier round had left."""

    step: int
    prompts: dict[PromptKey, PromptLengths]
    queued: frozenset[PromptKey] = frozenset()


def history_start(rounds: Iterable[tuple[int, float, float | None]]) -> int:
    """Return the first round whose lengths still hold; 0 for all.

    It is the last of these (step, measured seconds, seconds explained by the assumed lengths) that took longer than
    explained: the lengths changed there.

    >>> history_start([(3, 50.0, None), (4, 90.0, 60.0), (5, 40.0, 60.0)]), history_start([(4, 50.0, 60.0)])
    (4, 0)
    """
    return max((step for step, seconds, most in rounds if most is not None and seconds > most), default=0)


def rounds_considered(last: int, whole: Iterable[int], since: int = 0) -> tuple[int, ...]:
    """Return the rounds to consider after round `last`, ascending, none before `since`.

    `whole`: rounds of fresh prompts without a stopped response.

    >>> rounds_considered(20, [1, 2, 3, 19]), rounds_considered(3, [1, 2])
    ((2, 3, 13, 14, 15, 16, 17, 18, 19, 20), (1, 2, 3))
    >>> rounds_considered(20, [1, 2, 3, 19], since=3), rounds_considered(20, [3], since=19)
    ((3, 13, 14, 15, 16, 17, 18, 19, 20), (19, 20))
    """
    recent = range(max(1, since, last - WINDOW + 1), last + 1)
    older = [step for step in sorted(whole) if max(since - 1, last - REACH) < step < recent.start]
    return (*older[-WHOLE_ROUNDS:], *recent)


def population(rounds: Collection[PastRound]) -> list[PromptLengths]:
    """Return the prompts as the cursor drew them, each with its latest record. `rounds` ascend by step."""
    seen: dict[PromptKey, PromptLengths] = {}
    for one in rounds:
        for key, prompt in one.prompts.items():
            if key not in one.queued or key in seen:
                seen[key] = prompt
    return list(seen.values())
