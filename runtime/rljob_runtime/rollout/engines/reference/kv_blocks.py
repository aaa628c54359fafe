"""KV blocks: a free list, and a block table for each sequence. Pure bookkeeping without tensors."""

from __future__ import annotations


class BlockPool:
    """Pool of `total` blocks of `block_size` tokens each."""

    def __init__(self, total: int, block_size: int) -> None:
        if total < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs at least one block of one token, got {total} blocks of {block_size}")
        self.total = total
        self.block_size = block_size
        self._free = list(range(total - 1, -1, -1))

    @property
    def used_share(self) -> float:
        """Used share of all blocks, 0 to 1."""
        return 1.0 - len(self._free) / self.total

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` to hold `tokens`; return False, with nothing taken, if too few blocks are free."""
        missing = self.blocks_for(tokens) - len(table)
        if missing > len(self._free):
            return False
        table.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, table: list[int]) -> None:
        """Return all blocks of `table` to the pool and empty it."""
        self._free.extend(reversed(table))
        table.clear()
