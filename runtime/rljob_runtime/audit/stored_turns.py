"""Stored turns: how a state store holds what training got of an episode."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16


def loss_digest(tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Return the digest of tokens (int32) and their log-probabilities (float32), in the order of their commits.

    An update leaves no tokens in the store. The digest ties what it trained on to the nodes, which stay."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (array("i", tokens), array("f", logprobs)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(memoryview(part))
    return digest.digest()
