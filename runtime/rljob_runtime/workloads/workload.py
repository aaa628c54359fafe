"""Workload: the load of a round's prompts on engines, tools and rewards, as lengths and seconds.

Text, tokens and reward values are not part of it. A trace replays one, a generator creates one; simulator, benchmarks
and replays on a real engine (exact output lengths, PolyTrace §5) use either.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call. `tokens`: added to the context by its answer."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn: `tokens` are generated, then the calls run simultaneously, then their answers join the context."""

    tokens: int
    calls: tuple[ToolCall, ...] = ()

    @property
    def tool_seconds(self) -> float:
        return max((call.seconds for call in self.calls), default=0.0)

    @property
    def tool_tokens(self) -> int:
        return sum(call.tokens for call in self.calls)


@dataclass(frozen=True, slots=True)
class Response:
    """A response. `reward_seconds` is None if not recorded."""

    turns: tuple[Turn, ...]
    reward_seconds: float | None = None

    @property
    def output_tokens(self) -> int:
        """Generated tokens over all turns."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def tool_tokens(self) -> int:
        return sum(turn.tool_tokens for turn in self.turns)

    @property
    def tool_seconds(self) -> float:
        """Time in which the response waits for tools."""
        return sum(turn.tool_seconds for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. `kept`: whether dynamic sampling (DAPO) trains on it; None if not recorded."""

    index: int
    input_tokens: int
    responses: tuple[Response, ...]
    kept: bool | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The prompts of one step, each with the same number of responses."""

    task: str
    step: int
    prompts: tuple[Prompt, ...]

    @property
    def input_tokens(self) -> npt.NDArray[np.int64]:
        """Shape (prompts,)."""
        return np.array([prompt.input_tokens for prompt in self.prompts], dtype=np.int64)

    @property
    def output_tokens(self) -> npt.NDArray[np.int64]:
        """Shape (prompts, responses)."""
        rows = [[response.output_tokens for response in prompt.responses] for prompt in self.prompts]
        return np.array(rows, dtype=np.int64)


class Workload(Protocol):
    """Draws prompts by number. The same arguments give the same prompt, in any order and on any machine.

    - More responses never change the first ones, so tail batching (which launches more than it keeps) is compared
      with plain launching on the same lengths.
    - `attempt` counts earlier launches of the prompt: its hardness stays, its responses are new."""

    @property
    def task(self) -> str: ...

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt: ...


def batch(workload: Workload, step: int, prompts: int, responses: int) -> Batch:
    """Return step `step` of `prompts` × `responses`; a larger batch starts with the smaller one."""
    if prompts < 1 or responses < 1:
        raise ValueError(f"a batch of {prompts} prompts x {responses} responses is empty; 1 x 1 or more would be right")
    drawn = tuple(workload.prompt(step, index, responses) for index in range(prompts))
    return Batch(workload.task, step, drawn)


def random_stream(seed: int, task: str, *place: int) -> np.random.Generator:
    """Return a random generator of its own for each place (step, index, …), so that no draw depends on earlier ones."""
    return np.random.default_rng((seed, zlib.crc32(task.encode()), *place))
