"""Draw order: each epoch is a different permutation of the prompts, computed without being stored.

The index of a prompt is computed, so a draw needs only its cursor (epoch and position). A draw costs the same for ten
prompts and for a hundred million, and is equal on every machine and in every version.
"""

from __future__ import annotations

import hashlib

ROUNDS = 6


class DrawOrder:
    """Permutations of `range(size)`, one per epoch, from a seed.

    A Feistel network permutes the next power of four. It is applied until the result is inside the range.
    """

    def __init__(self, size: int, seed: int):
        if size < 1:
            raise ValueError(f"size is {size}; there must be something to draw")
        self.size = size
        self.seed = seed
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)

    def index(self, epoch: int, position: int) -> int:
        """Return the index at `position` of `epoch`.

        Raises `IndexError` outside of `range(size)`.
        """
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is not in 0..{self.size - 1}")
        value = self._shuffle(epoch, position)
        while value >= self.size:  # a permutation of a larger range returns to this range within a few steps
            value = self._shuffle(epoch, value)
        return value

    def _shuffle(self, epoch: int, value: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for turn in range(ROUNDS):
            digest = hashlib.blake2b(f"{self.seed}/{epoch}/{turn}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        return left << self._half_bits | right
