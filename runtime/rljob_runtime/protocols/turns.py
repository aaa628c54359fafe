"""Turns: what the gateway asks of the coordinator, and the answer that is stored before the client receives it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.protocols.errors import PeerGone, PeerTimeout, Refused
from rljob_runtime.protocols.trajectory import FinishReason, TrajectoryKey


@dataclass(frozen=True, order=True)
class EpisodeAttempt:
    """One attempt of one episode. A further attempt begins a new tree.

    `resumption`: how often another runner has gone on with it. Runners and agents name it, so that what an earlier one
    asks or reports is refused.
    """

    key: TrajectoryKey
    attempt: int
    resumption: int = 0

    def __str__(self) -> str:
        resumed = f", resumption {self.resumption}" if self.resumption else ""
        return f"{self.key} attempt {self.attempt}{resumed}"


@dataclass(frozen=True)
class TurnBounds:
    """What a client asks for to end its turn earlier than the job's sampling parameters would.

    The coordinator takes the smaller number of tokens, and adds the stop tokens and strings to the job's own.
    """

    max_tokens: int
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TurnCall:
    """A request for one turn.

    `token_ids`: the whole prompt. It attaches to the deepest node whose tokens are its prefix. `digest` identifies the
    client's request, or one of equal requests (`numbered`). With `retry` the recorded answer to this digest is wanted,
    if there is one. `body` is the request as the client sent it, to be stored with the turn: its sampling parameters
    are in there. `deadline`: seconds of the epoch; the caller no longer waits after it. `reencoded_tokens`: sampled
    tokens of the turn before that the model's template wrote in another form, so that the prompt begins again from the
    text.
    """

    episode: EpisodeAttempt
    digest: str
    retry: bool
    token_ids: Sequence[int]
    bounds: TurnBounds
    body: bytes
    deadline: float
    reencoded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestNumber:
    """The place of a request in a series of equal ones, which one process counts from 0.

    `series`: hexadecimal digits that no other series has.
    """

    series: str
    index: int


_NUMBERED = re.compile(r"(?P<request>.*)#(?P<series>[0-9a-f]+)\.(?P<index>[0-9]+)", re.DOTALL)


def numbered(digest: str, number: RequestNumber) -> str:
    """Return the digest of one of equal requests: each has an answer of its own."""
    return f"{digest}#{number.series}.{number.index}"


def unnumbered(digest: str) -> tuple[str, RequestNumber | None]:
    """Return the digest of a request without its number, and the number; None without one."""
    if (found := _NUMBERED.fullmatch(digest)) is None:
        return digest, None
    return found["request"], RequestNumber(found["series"], int(found["index"]))


@dataclass(frozen=True)
class RecordedTurn:
    """A stored turn: the tokens as the engine emitted them. `node` is its place in the episode's tree.

    `stored_at`: seconds of the epoch. `forked`: the turn opened a branch beside an existing one. `replayed`: the turn
    was stored before this call.
    """

    node: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    weight_version: int
    finish_reason: FinishReason
    stored_at: float
    forked: bool = False
    replayed: bool = False


@dataclass(frozen=True)
class StoredTurn:
    """A turn of an episode's history: its prompt, the client's request, and the answer."""

    token_ids: Sequence[int]
    body: bytes
    turn: RecordedTurn


class AttemptEnded(Refused):
    """The attempt has ended, or is not known. The message says why."""


class TurnRefused(Refused):
    """The episode opens no further turn: it reached a limit. The message names it."""


class Turns(Protocol):
    """The coordinator, as the gateway needs it.

    A call raises nothing but `AttemptEnded`, `TurnRefused`, `PeerGone` and `PeerTimeout`. After the last two the turn
    may have been stored, and the same call with `retry` returns it.
    """

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """Return the turn when it is stored. While no engine has weights the call waits."""
        ...

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """Return the stored turns of an open attempt, in the order of their nodes; with `newest` only the last answer.

        Of those with long requests, only the newest are there.
        """
        ...


COORDINATOR_AWAY = (PeerGone, PeerTimeout)
"""Errors after which a call is sent again."""
