"""Length model: draws response lengths of the next rounds from those of the last ones.

A round is drawn group by group from the observed prompts (a bootstrap), so that the responses of a prompt stay similar.
Stopped responses are completed by the survival estimate: taking them as finished would hide the tail that decides.
Additional responses of a prompt, and those of a repeated launch, come from the same prompt with the probability of the
similarity within prompts, and otherwise from any prompt. A runaway response is not a property of its prompt; a hard
prompt is (the two tails of docs/internals/scheduling/round-planner.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from rljob_runtime.scheduling.round_planner.round_simulator import PromptDemand
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival


@dataclass(frozen=True)
class PromptLengths:
    """A prompt and all its launched responses. `filtered`: its group had no training signal (DAPO)."""

    prompt_tokens: int
    responses: tuple[LengthObservation, ...]
    filtered: bool = False


class LengthModel:
    """Distribution of lengths after these prompts.

    The prompts must be as the cursor drew them: complete rounds, winners and losers. No response is longer than `limit`
    tokens, even if one was observed: an edit may have lowered the limit. Raises `ValueError` without a prompt."""

    def __init__(self, prompts: Sequence[PromptLengths], limit: int) -> None:
        if not prompts:
            raise ValueError("lengths of no prompts; those of one round or more would be right")
        self._prompts = prompts
        self._limit = limit
        self._all = [response for prompt in prompts for response in prompt.responses]
        self._survival = Survival.of(self._all)
        self.filtered = fmean(prompt.filtered for prompt in prompts)
        """Share of filtered prompts."""
        self.similarity = similarity([prompt.responses for prompt in prompts])

    def __len__(self) -> int:
        return len(self._all)

    @property
    def observed(self) -> Sequence[LengthObservation]:
        """All responses."""
        return self._all

    @property
    def stopped(self) -> int:
        """Number of stopped responses."""
        return sum(not one.ended for one in self._all)

    def draw(self, random: Random, prompts: int, responses: int) -> tuple[PromptDemand, ...]:
        """Draw prompts as the cursor may draw them next.

        Their first responses do not depend on how many are drawn after them."""
        return tuple(self._draw(random, random.choice(self._prompts), responses) for _ in range(prompts))

    def redraw(self, random: Random, demand: PromptDemand, responses: int) -> PromptDemand:
        """Draw new responses for a prompt that is launched again, as similar to the old ones as siblings are."""
        lengths = tuple(
            random.choice(demand.lengths) if random.random() < self.similarity else self._anybody(random)
            for _ in range(responses)
        )
        return PromptDemand(demand.prompt_tokens, lengths, demand.filtered)

    def _draw(self, random: Random, prompt: PromptLengths, responses: int) -> PromptDemand:
        common = random.random()
        own = [
            self._complete(one, common if random.random() < self.similarity else random.random())
            for one in random.sample(prompt.responses, len(prompt.responses))
        ]
        seen = PromptDemand(prompt.prompt_tokens, tuple(own[:responses]), prompt.filtered)
        more = self.redraw(random, PromptDemand(prompt.prompt_tokens, tuple(own)), max(0, responses - len(own)))
        return PromptDemand(seen.prompt_tokens, seen.lengths + more.lengths, seen.filtered)

    def _anybody(self, random: Random) -> int:
        return self._complete(random.choice(self._all), random.random())

    def _complete(self, response: LengthObservation, share: float) -> int:
        length = response.tokens if response.ended else self._survival.beyond(response.tokens, share)
        return min(self._limit, max(1, length))


ENOUGH_GROUPS = 8


def similarity(groups: Sequence[Sequence[LengthObservation]]) -> float:
    """Return the intraclass correlation of log lengths within prompts, 0 to 1 (one-way analysis of variance).

    It uses the groups without a stopped response if there are enough, else all groups with their lengths so far.

    >>> short, long = LengthObservation(10), LengthObservation(1000)
    >>> similarity([[short, short], [long, long]]), similarity([[short, long], [short, long]])
    (1.0, 0.0)
    """
    whole = [group for group in groups if len(group) > 1 and all(one.ended for one in group)]
    used = whole if len(whole) >= ENOUGH_GROUPS else [group for group in groups if len(group) > 1]
    logs = [[math.log(max(1, one.tokens)) for one in group] for group in used]
    total = sum(map(len, logs))
    if len(logs) < 2:
        return 0.0
    means, grand = [fmean(group) for group in logs], fmean(value for group in logs for value in group)
    size = (total - sum(len(group) ** 2 for group in logs) / total) / (len(logs) - 1)
    between = sum(len(group) * (mean - grand) ** 2 for group, mean in zip(logs, means, strict=True)) / (len(logs) - 1)
    inside = sum((value - mean) ** 2 for group, mean in zip(logs, means, strict=True) for value in group)
    within = inside / (total - len(logs))
    spread = between + (size - 1) * within
    return min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 0.0
