"""A trajectory is one response: who asked for it, who generates it, what came of it.

Identity is (prompt, sample); every launch of it raises `attempt`, and (replica, attempt) is its lease: what arrives
under an older lease is dropped. All values here are frozen, so they can cross any boundary and be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a trajectory ends. Each ends in exactly one of these, once."""

    TRAINED = "trained"
    DISCARDED = "discarded"


class FinishReason(StrEnum):
    """Why an engine stopped generating."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, order=True)
class PromptKey:
    """A prompt as it was drawn: (epoch, index in the data set). Never its content, so it can be drawn once an epoch."""

    epoch: int
    index: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> PromptKey:
        epoch, index = text.split(".")
        return cls(int(epoch), int(index))


@dataclass(frozen=True, order=True)
class TrajectoryKey:
    """One response to a prompt: `sample` counts from 0 to responsesPerPrompt - 1 (or the launched number)."""

    prompt: PromptKey
    sample: int

    def __str__(self) -> str:
        return f"{self.prompt}.{self.sample}"

    @classmethod
    def parse(cls, text: str) -> TrajectoryKey:
        prompt, _, sample = text.rpartition(".")
        return cls(PromptKey.parse(prompt), int(sample))


@dataclass(frozen=True, order=True)
class Cursor:
    """Where the next prompt is drawn: epoch and position in that epoch's order."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class Lease:
    """The right to extend a trajectory: only deltas under the current (replica, attempt) are accepted."""

    replica: str
    attempt: int


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy. Behaviour logprobs are those of the tempered distribution."""

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


def sample_seed(run_seed: int, step: int, key: TrajectoryKey, failures: int, offset: int) -> int:
    """A seed for each (run, step, response, try, place it goes on from): relaunching the same gives the same, a resumed
    response does not draw the random numbers of its beginning again, and a prompt that lost its race is not tried again
    with the very numbers that made it long."""
    text = f"{run_seed}/{step}/{key}/{failures}/{offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class Response:
    """A finished response: tokens, the sampler's own logprobs (natural log, one a token), and the one weight
    version. Both are arrays of 4 bytes a token where they come from the coordinator, which holds many."""

    key: TrajectoryKey
    attempt: int
    weight_version: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    replica: str


@dataclass(frozen=True)
class ScoredResponse:
    """A response with its reward (any finite number)."""

    response: Response
    reward: float


@dataclass(frozen=True)
class Group:
    """All kept responses of one prompt: the unit of admission, advantage and training."""

    prompt: PromptKey
    prompt_token_ids: tuple[int, ...]
    responses: tuple[ScoredResponse, ...] = field(default=())
