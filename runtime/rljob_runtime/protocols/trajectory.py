"""Trajectory: one response, from its request to its outcome.

Its identity is (prompt, sample). Each launch raises `attempt`, and (replica, attempt) is its lease: deltas with an
older lease are dropped. All values are frozen, so that they can cross processes and be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a trajectory. Each has exactly one."""

    TRAINED = "trained"
    DISCARDED = "discarded"


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, order=True)
class PromptKey:
    """A drawn prompt: (epoch, index in the data set), never its content. So a prompt is drawn once an epoch."""

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
    """One response to a prompt. `sample` counts from 0 to the number of launched responses less 1."""

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
    """The position of the next prompt: epoch, and index in that epoch's order."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class Lease:
    """The right to extend a trajectory: only deltas under the current (replica, attempt) are accepted."""

    replica: str
    attempt: int


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy. Behaviour logprobs are those of the tempered distribution."""

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


def sample_seed(run_seed: int, step: int, key: TrajectoryKey, failures: int, offset: int) -> int:
    """Return the sampling seed of one launch.

    It depends on run, step, response, number of failures and offset. The same launch gets the same seed. A resumed
    response does not repeat the random numbers of its beginning. A deferred prompt does not repeat those that made it
    long.
    """
    text = f"{run_seed}/{step}/{key}/{failures}/{offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class Response:
    """A finished response: its tokens, the engine's logprobs (natural log, one for each token) and its weight version.

    From the coordinator, both sequences are arrays of 4 bytes a token, because it holds many.
    """

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
