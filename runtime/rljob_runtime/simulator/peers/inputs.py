"""Simulated prompts and rewards: contents are keys; lengths and seconds come from a workload."""

from __future__ import annotations

import asyncio
import math
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from rljob_runtime.coordinator.episodes.attempt import turn_of
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.simulator.core.events import Observe, Scored, unobserved
from rljob_runtime.simulator.core.process_clock import SOON, Event, ProcessClock, loop_time
from rljob_runtime.workloads.workload import Turn, Workload

T = TypeVar("T")

TURN_SHARE = 8
"""A turn has one of so many parts of a response's tokens."""


@dataclass(frozen=True)
class SimulatedPrompt:
    """A prompt whose content is its key."""

    key: PromptKey
    token_ids: tuple[int, ...]


def three_tokens(key: PromptKey) -> int:
    """Return the length of every prompt without a workload."""
    return 3


class SimulatedTexts:
    """Stand-ins for texts: a prompt's is its key, a response's its number of tokens and their checksum."""

    def messages(self, key: PromptKey) -> tuple[Mapping[str, str], ...]:
        return ({"role": "user", "content": f"prompt {key}"},)

    def decode(self, token_ids: Sequence[int]) -> str:
        return f"{len(token_ids)} tokens, {zlib.crc32(array('i', token_ids).tobytes()):08x}"


class SimulatedPrompts:
    """`protocols.PromptSource`: `size` prompts per epoch of each source, in order.

    `evaluations`: number of prompts of each."""

    stop_token_ids: tuple[int, ...] = ()
    skipped = 0
    overlaps: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        size: int = 1000,
        tokens_of: Callable[[PromptKey], int] = three_tokens,
        evaluations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.size = size
        self._evaluations = evaluations
        self._tokens_of = tokens_of

    def draw(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        here = cursor.of(source)
        first = here.epoch * self.size + here.position
        keys = tuple(PromptKey(*divmod(place, self.size), source) for place in range(first, first + count))
        return keys, cursor.moved(source, Cursor(*divmod(first + count, self.size)), count)

    async def take(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        return self.draw(cursor, count, source)

    def prompt(self, key: PromptKey) -> SimulatedPrompt:
        return SimulatedPrompt(key, (key.index % 97,) * self._tokens_of(key))

    async def messages(self, key: PromptKey) -> tuple[Mapping[str, str], ...]:
        """Return a stand-in text, for episodes."""
        return SimulatedTexts().messages(key)

    async def prompt_tokens(self, keys: Sequence[PromptKey]) -> list[int]:
        return [self._tokens_of(key) for key in keys]

    def evaluation_prompts(self, name: str) -> Sequence[int]:
        return range(self._evaluations[name])

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return a stand-in text, for rewards that use nothing else."""
        return SimulatedTexts().decode(token_ids)

    async def read_texts(self, work: Callable[[SimulatedTexts], T]) -> T:
        """Run `work` on stand-in texts, for samples."""
        return work(SimulatedTexts())


class WorkloadLengths:
    """Lengths of a workload: its step is the epoch, its attempt the weight version.

    The first `responses` of a prompt are drawn together and have the workload's similarity; then they repeat. Prompts
    are cut at `most_prompt` tokens. `plays_turns`: turns of episodes are the workload's, of whatever version."""

    def __init__(self, workload: Workload, responses: int, most_prompt: int, plays_turns: bool = False) -> None:
        self._most_prompt = most_prompt
        self._plays_turns = plays_turns
        self._drawn = lru_cache(maxsize=4096)(
            lambda prompt, version: workload.prompt(prompt.epoch, prompt.index, responses, version)
        )

    def response(self, key: TrajectoryKey, version: int) -> int:
        """Implement `replica.Lengths`. Turns are shorter than responses, and each has a length of its own."""
        turn = turn_of(key)
        if turn is not None and self._plays_turns:
            responses = self._drawn(key.prompt, 0).responses
            turns = responses[key.sample % len(responses)].turns
            return max(1, turns[place_of(turns, turn[1])].tokens)
        drawn = self._drawn(key.prompt, version).responses
        place = key.sample if turn is None else key.sample + turn[1]
        tokens = int(drawn[place % len(drawn)].output_tokens)
        return tokens if turn is None else max(1, tokens // TURN_SHARE)

    def prompt(self, key: PromptKey) -> int:
        """Return the tokens of a prompt."""
        return min(self._most_prompt, max(1, int(self._drawn(key, 0).input_tokens)))


def place_of(turns: Sequence[Turn], node: int) -> int:
    """Return the place of the turn that has this node in its episode, if the episode has no forks.

    A turn's node follows that of its given tokens, if tools have added any.

    >>> from rljob_runtime.workloads import ToolCall
    >>> searches = [Turn(7, (ToolCall(1.0, 30),)), Turn(9, (ToolCall(1.0, 0),)), Turn(5)]
    >>> [place_of(searches, node) for node in (2, 4, 5)]
    [0, 1, 2]
    """
    newest = 0
    for place in range(len(turns)):
        newest += 2 if not place or turns[place - 1].tool_tokens else 1
        if newest >= node:
            return place
    return len(turns) - 1


class SimulatedRewards:
    """`protocols.Rewards`: scores by the text only (one of `levels` scores below 1) after `seconds(text)`.

    Fails for the prompts in `fails`, as often as given. Longer runs than `bound` end as failures, as in the pool."""

    def __init__(
        self,
        seconds: Callable[[str], float] = lambda text: 0.1,
        fails: dict[str, int] | None = None,
        bound: float = 30.0,
        levels: int = 1000,
        observe: Observe = unobserved,
    ) -> None:
        self.pace = ProcessClock()
        self._levels = levels
        self._crashed = Event()
        self._seconds = seconds
        self._fails = fails if fails is not None else {}
        self._bound = bound
        self._observe = observe
        self._scored, self._spent = 0, 0.0

    def figures(self) -> RewardStats:
        return RewardStats(scored=self._scored, seconds=self._spent)

    def take_anchors(self) -> Anchors:
        return {}

    def restore_anchors(self, anchors: Anchors) -> None:
        """Ignore anchors: nothing is bounded by them."""

    def forget(self) -> None:
        """Clear the memory: the coordinator's pod was replaced."""

    def crash(self) -> None:
        """Fail everything that is being scored."""
        self._crashed.fire()

    async def score(self, prompt: object, response_text: str, environment_reward: float | None = None) -> float:
        since, name = loop_time(), str(getattr(prompt, "key", prompt))
        reward: float | None = None
        if await self._runs(self._seconds(response_text)) and self._fails.get(name, 0) <= 0:
            reward = zlib.crc32(response_text.encode()) % self._levels / self._levels
        elif self._fails.get(name, 0) > 0:
            self._fails[name] -= 1
        self._observe(Scored(name, reward, since))
        self._spent += loop_time() - since
        self._scored += reward is not None
        if reward is None:
            raise RewardFailed(f"the reward of {name} failed")
        return reward

    async def _runs(self, seconds: float) -> bool:
        """Check whether a run of this duration completes."""
        due = self.pace.now() + seconds
        try:
            async with asyncio.timeout(self._bound if math.isfinite(self._bound) else None):
                await self.pace.until(due, self._crashed)
        except TimeoutError:
            return False
        return due - self.pace.now() <= SOON
