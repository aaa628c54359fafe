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

    def position(self, epoch: int, index: int) -> int:
        """Return the position of `index` in `epoch`: the inverse of `index`.

        Raises `IndexError` outside of `range(size)`.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in 0..{self.size - 1}")
        value = self._unshuffle(epoch, index)
        while value >= self.size:
            value = self._unshuffle(epoch, value)
        return value

    def _shuffle(self, epoch: int, value: int) -> int:
        left, right = divmod(value, 1 << self._half_bits)
        for turn in range(ROUNDS):
            left, right = right, left ^ self._mixed(epoch, turn, right)
        return left << self._half_bits | right

    def _unshuffle(self, epoch: int, value: int) -> int:
        left, right = divmod(value, 1 << self._half_bits)
        for turn in reversed(range(ROUNDS)):
            left, right = right ^ self._mixed(epoch, turn, left), left
        return left << self._half_bits | right

    def _mixed(self, epoch: int, turn: int, half: int) -> int:
        """Return a hash of one half, in as many bits."""
        digest = hashlib.blake2b(f"{self.seed}/{epoch}/{turn}/{half}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") & ((1 << self._half_bits) - 1)
