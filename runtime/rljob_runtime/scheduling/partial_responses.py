"""Tokens of responses under way: what is accepted from a replica and what is dropped.

A delta extends a response only under its current lease, with its one weight version, from the offset where it ends.
Polls deliver at least once, so repeated deltas are normal; everything else that does not fit belongs to somebody who
lost the lease.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_runtime.protocols.trajectory import FinishReason, Lease, Response, TrajectoryKey


class DeltaStatus(StrEnum):
    """What became of a delta."""

    ACCEPTED = "accepted"
    FINISHED = "finished"
    """Accepted, and the response is whole."""
    DUPLICATE = "duplicate"
    """Held already; nothing changed."""
    STALE = "stale"
    """From an older lease, or of a response that is not under way: dropped."""
    GAP = "gap"
    """Tokens before it never came: the response must be launched again from what is held."""
    WRONG_VERSION = "wrong-version"
    """Made by other weights: the response must be launched again from nothing."""


@dataclass
class Partial:
    """One response under way: 8 bytes a token (int32, and float32, as engines compute log-probabilities). Thousands of
    long ones are held at once."""

    lease: Lease
    weight_version: int
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))


class Partials:
    """All responses of a stage that are under way. In memory only; the store keeps a copy."""

    def __init__(self) -> None:
        self._held: dict[TrajectoryKey, Partial] = {}

    def __contains__(self, key: TrajectoryKey) -> bool:
        return key in self._held

    def open(self, key: TrajectoryKey, lease: Lease, weight_version: int) -> Partial:
        """Give a response to a new lease. What it has stays if it is of the same version; an older lease is refused."""
        held = self._held.get(key)
        if held is not None and lease.attempt <= held.lease.attempt:
            raise ValueError(f"{key}: attempt {lease.attempt} is not above {held.lease.attempt}")
        if held is None or held.weight_version != weight_version:
            held = self._held[key] = Partial(lease, weight_version)
        held.lease = lease
        return held

    def restore(self, key: TrajectoryKey, partial: Partial) -> None:
        """Put back what the store kept."""
        self._held[key] = partial

    def tokens_of(self, key: TrajectoryKey) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens and behaviour log-probabilities held so far."""
        held = self._held.get(key)
        return (tuple(held.token_ids), tuple(held.logprobs)) if held is not None else ((), ())

    def length_of(self, key: TrajectoryKey) -> int:
        """How many tokens are held so far."""
        held = self._held.get(key)
        return len(held.token_ids) if held is not None else 0

    def forget(self, key: TrajectoryKey) -> None:
        """The response ended or starts again from nothing."""
        self._held.pop(key, None)

    def accept(
        self,
        key: TrajectoryKey,
        lease: Lease,
        offset: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        weight_version: int,
        finished: bool,
    ) -> DeltaStatus:
        """Judge one delta, and append what is new in it."""
        held = self._held.get(key)
        if held is None or held.lease != lease:
            return DeltaStatus.STALE
        if weight_version != held.weight_version:
            return DeltaStatus.WRONG_VERSION
        length = len(held.token_ids)
        if offset > length:
            return DeltaStatus.GAP
        known = length - offset
        if known >= len(token_ids) and not finished:
            return DeltaStatus.DUPLICATE
        held.token_ids.extend(token_ids[known:])
        held.logprobs.extend(logprobs[known:])
        return DeltaStatus.FINISHED if finished else DeltaStatus.ACCEPTED

    def move(self, key: TrajectoryKey, lease: Lease, offset: int) -> None:
        """From `offset` on another lease extends it; what came after that under the former one is dropped."""
        held = self._held[key]
        del held.token_ids[offset:]
        del held.logprobs[offset:]
        held.lease = lease

    def close(self, key: TrajectoryKey, reason: FinishReason) -> Response:
        """The whole response; it is no longer under way."""
        held = self._held.pop(key)
        return Response(
            key=key,
            attempt=held.lease.attempt,
            weight_version=held.weight_version,
            token_ids=held.token_ids,
            logprobs=held.logprobs,
            finish_reason=reason,
            replica=held.lease.replica,
        )
