"""Turns: requests of a client for one answer of the model, and what an episode decides about them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.protocols.turns import RequestNumber
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.node import Node


@dataclass(frozen=True)
class TurnRequest:
    """A request for one turn.

    `digest` identifies its body. With `retry` the client says that it sends a former request again. Without it, equal
    bodies are different requests: agents that run concurrently may ask the same.
    """

    token_ids: Sequence[int]
    digest: str
    retry: bool = False


@dataclass(frozen=True)
class Turn:
    """An open turn: an engine is to answer the request's tokens.

    `id`: of the node that it becomes. `parent`: the node whose path is the request. `most_tokens`: what the episode's
    limit leaves; None without one. `version`: the weights that must generate it; None for any.
    """

    id: int
    parent: int
    digest: str
    prompt_tokens: int
    opened: float
    most_tokens: int | None = None
    version: int | None = None


@dataclass(frozen=True)
class Generate:
    """Send the turn to an engine, then `Episode.commit` or `Episode.drop` it."""

    turn: Turn


@dataclass(frozen=True)
class InProgress:
    """A former turn that is still open: wait for its commit. `repeated`: by a program that runs again; else a retry."""

    turn: Turn
    repeated: bool = False


@dataclass(frozen=True)
class Recorded:
    """A committed turn: answer with this node. `repeated`: by a program that runs again; else a retry."""

    node: Node
    repeated: bool = False


@dataclass(frozen=True)
class Refused:
    """The episode opens no turn. `limit`: the one that was reached; None if the episode has ended."""

    reason: str
    limit: Limit | None = None


@dataclass(frozen=True)
class Diverged:
    """A program that runs again asks for something else than before (`rerun`): end the attempt by `Episode.diverge`."""

    reason: str


Decision = Generate | InProgress | Recorded | Refused | Diverged


def may_answer(made: RequestNumber | None, asked: RequestNumber | None, runs_again: bool) -> bool:
    """Return whether the turn of a request, `made`, may be given to a retry of an equal one, `asked`.

    A retry without a number gets any turn. One with a number gets that of its own request. The first of a series also
    gets any turn of other series: what was asked before its process began is not known. `runs_again`: the program runs
    again, and asks in a new series: it gets the turn of the same index.
    """
    if asked is None or made == asked:
        return True
    if made is not None and made.series == asked.series:
        return False
    return asked.index == (index_of(made) if runs_again else 0)


def index_of(number: RequestNumber | None) -> int:
    """Return the place of a request among equal ones. One without a number counts as the first."""
    return 0 if number is None else number.index


def evaluation_seed(run_seed: int, key: TrajectoryKey, prompt: Sequence[int], sibling: int) -> int:
    """Return the sampling seed of a turn of an evaluation: it is the same in each attempt.

    What a failure of ours ended is sampled again, and no other sample takes its place. `prompt`: the tokens before the
    turn. `sibling`: the number of earlier turns of the attempt that have the same prompt.
    """
    text = f"{run_seed}/{key}/sibling {sibling}/".encode() + array("i", prompt).tobytes()
    return _seed(text)


def turn_seed(run_seed: int, key: TrajectoryKey, attempt: int, turn: int) -> int:
    """Return the sampling seed of a turn. A new attempt draws other numbers, so that it does not repeat a failure."""
    return _seed(f"{run_seed}/{key}/{attempt}/turn {turn}".encode())


def _seed(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") & 0x7FFFFFFF
