"""Stored turns: how a state store holds what training got of an episode.

An update leaves no tokens in the store. A digest ties what it trained on to the nodes of the attempt, which stay. It
covers each sampled node with all tokens before it, in whichever sequence it was trained, and the reward.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence

OF_TOKENS_BYTES = 16
"""A digest of this length is of a store of format 17 or less: of sampled tokens and log-probabilities alone."""
DIGEST_BYTES = 32


class Context:
    """The tokens before a place in a sequence, as a running digest."""

    def __init__(self, running: hashlib.blake2b | None = None) -> None:
        self._running = hashlib.blake2b(digest_size=DIGEST_BYTES) if running is None else running

    def extended(self, tokens: Sequence[int]) -> Context:
        """Return the context after these tokens (int32)."""
        longer = self._running.copy()
        longer.update(memoryview(array("i", tokens)))
        return Context(longer)

    def sampled(self, tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
        """Return the digest of tokens (int32) that were sampled here, with their log-probabilities (float32)."""
        return _digest(self._running.digest(), array("i", tokens), array("f", logprobs))


def trained_digest(sampled: Iterable[bytes], reward: float) -> bytes:
    """Return the digest of a response: of all its sampled nodes in their contexts, in any order, and of its reward."""
    # A store has no negative zero.
    return _digest(*sorted(sampled), struct.pack("<d", reward + 0.0))


def loss_digest(tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Return the digest of `OF_TOKENS_BYTES`: of tokens (int32) and logprobs (float32), in the order of commits."""
    return _digest(array("i", tokens), array("f", logprobs), size=OF_TOKENS_BYTES)


def _digest(*parts: bytes | array[int] | array[float], size: int = DIGEST_BYTES) -> bytes:
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(memoryview(part))
    return digest.digest()
