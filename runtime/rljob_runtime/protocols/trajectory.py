"""Trajectory: one response, from its request to its outcome.

Its identity is (prompt, sample). Each launch raises `attempt`, and (replica, attempt) is its lease: deltas with an
older lease are dropped. All values are frozen, so that they can cross processes and be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

EVALUATION_SOURCE = "evaluation:"
"""Prefix of the source in the keys of an evaluation's prompts. No source of training prompts has a colon."""


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
    """A drawn prompt: (epoch, index in the data set), never its content. So a prompt is drawn once an epoch.

    `source`: name of the data set, where a job has several. The text is `epoch.index`, or `source/epoch.index`.
    """

    epoch: int
    index: int
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.epoch}.{self.index}"
        return f"{self.source}/{place}" if self.source else place

    @property
    def evaluation(self) -> str | None:
        """Name of the evaluation that the prompt belongs to; None for a training prompt."""
        return self.source.removeprefix(EVALUATION_SOURCE) if self.source.startswith(EVALUATION_SOURCE) else None

    @classmethod
    def parse(cls, text: str) -> PromptKey:
        source, _, place = text.rpartition("/")
        epoch, index = place.split(".")
        return cls(int(epoch), int(index), source)


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
class SourceCursor:
    """The position of a named source's next prompt, and its count in the shares of a job (`scheduling.shares`).

    `allotted`: prompts that its share gave it since the weights changed last; `weight`: its weight then.
    """

    name: str
    epoch: int = 0
    position: int = 0
    allotted: int = 0
    weight: str = "0"


@dataclass(frozen=True, order=True)
class Cursor:
    """The position of the next prompt: epoch, and index in that epoch's order.

    With named sources, each has its own position, and `position` is the number of prompts drawn, in epoch 0.
    """

    epoch: int = 0
    position: int = 0
    sources: tuple[SourceCursor, ...] = ()

    def of(self, source: str) -> Cursor:
        """Return the position in one source; "" names the only one."""
        if not source:
            return self
        found = next((one for one in self.sources if one.name == source), SourceCursor(source))
        return Cursor(found.epoch, found.position)

    def moved(self, source: str, to: Cursor, drawn: int) -> Cursor:
        """Return the cursor after `drawn` prompts of one source, which is `to` then."""
        if not source:
            return to
        places = {one.name: one for one in self.sources}
        here = places.get(source, SourceCursor(source))
        places[source] = replace(here, epoch=to.epoch, position=to.position)
        return Cursor(0, self.position + drawn, tuple(places.values()))


@dataclass(frozen=True)
class Lease:
    """The right to extend a trajectory: only deltas under the current (replica, attempt) are accepted."""

    replica: str
    attempt: int


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy.

    Tokens are drawn from those that top p, top k (0: all) and min p leave. Behaviour logprobs are those of the tempered
    distribution over all tokens. The token that completes a stop string in the decoded text is the last one.
    """

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


def sample_seed(run_seed: int, step: int, key: TrajectoryKey, failures: int, offset: int) -> int:
    """Return the sampling seed of one launch.

    It depends on run, step, response, number of failures and offset. The same launch gets the same seed. A resumed
    response does not repeat the random numbers of its beginning. A deferred prompt does not repeat those that made it
    long.
    """
    text = f"{run_seed}/{step}/{key}/{failures}/{offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class Span:
    """Tokens that the model was given, and the number of sampled tokens that follow them."""

    given: Sequence[int]
    sampled: int


@dataclass(frozen=True)
class Response:
    """A finished response: its tokens, the engine's logprobs (natural log, one for each token) and its weight version.

    From the coordinator, both sequences are arrays of 4 bytes a token, because it holds many. Of an episode of several
    turns, these are the sampled tokens that are trained on, and the version is the oldest.
    """

    key: TrajectoryKey
    attempt: int
    weight_version: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    replica: str
    sequences: tuple[tuple[Span, ...], ...] = ()
    """Where the tokens stand: sequences that begin with the group's prompt, each in its spans. Their sampled tokens are
    `token_ids`, end to end. Empty: one sequence of one span, directly after the prompt."""


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
