"""KV layout: which heads a rank holds, and the order of the bytes of a response in a KV file. Pure.

    [kv_head][layer][block][bytes of one block of one head]

Heads are outermost, so what a rank reads or writes is one range of bytes in any layout, and each head has its own
checksum. The interior of a block belongs to the engine's kernel and is copied as it is: vLLM packs keys by the
instruction set on CPUs. So giver and taker must agree on `KvShape`, which names the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KvShape:
    """What the bytes of a KV file mean; equal in every layout of an engine."""

    kernel: str
    """Engine and version that define the interior of a block."""
    dtype: str
    layers: int
    kv_heads: int
    """Key-value heads of the model, not of one rank."""
    block_size: int
    """Tokens of a block."""
    token_bytes: int
    """Bytes of keys and values of one token, in one head of one layer."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one head of one layer."""
        return self.block_size * self.token_bytes

    def full_blocks(self, tokens: int) -> int:
        """Return the number of blocks that `tokens` fill completely. Only these never change."""
        return tokens // self.block_size

    def head_bytes(self, tokens: int) -> int:
        """Return the bytes of one head of a response of `tokens` tokens, which fill their blocks."""
        return self.layers * self.full_blocks(tokens) * self.block_bytes

    def response_bytes(self, tokens: int) -> int:
        """Return the bytes of all heads of a response of `tokens` tokens, which fill their blocks."""
        return self.kv_heads * self.head_bytes(tokens)


def heads_of(rank: int, ranks: int, kv_heads: int) -> range:
    """Return the key-value heads of rank `rank` among `ranks`.

    With more ranks than heads, neighbours hold the same head. Raises `ValueError` if the heads do not split.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks}")
    if ranks <= kv_heads and kv_heads % ranks == 0:
        each = kv_heads // ranks
        return range(rank * each, (rank + 1) * each)
    if ranks > kv_heads and ranks % kv_heads == 0:
        head = rank * kv_heads // ranks
        return range(head, head + 1)
    raise ValueError(f"{kv_heads} key-value heads do not split over {ranks} ranks, nor the ranks over the heads")


def written_by(rank: int, ranks: int, kv_heads: int) -> range:
    """Return the heads that this rank writes: each head is written once, by the first rank that holds it."""
    own = heads_of(rank, ranks, kv_heads)
    repeated = rank > 0 and heads_of(rank - 1, ranks, kv_heads) == own
    return range(0) if repeated else own


def gather(caches: Sequence[torch.Tensor], table: Sequence[int], into: torch.Tensor) -> None:
    """Copy blocks `table` of each layer's cache into `into`, bytes [heads, layers, blocks, block_bytes].

    `caches`: [all blocks, heads, ...] for each layer, of any strides and on any device.
    """
    for layer, cache in enumerate(caches):
        blocks = torch.tensor(table, dtype=torch.long, device=cache.device)
        heads_first = cache[blocks].transpose(0, 1).contiguous()
        into[:, layer] = heads_first.view(torch.uint8).reshape(into[:, layer].shape)


def scatter(source: torch.Tensor, caches: Sequence[torch.Tensor], table: Sequence[int]) -> None:
    """Copy `source`, bytes [heads, layers, blocks, block_bytes], into blocks `table` of each layer's cache.

    It undoes `gather` with the same table.
    """
    for layer, cache in enumerate(caches):
        blocks = torch.tensor(table, dtype=torch.long, device=cache.device)
        values = source[:, layer].contiguous().view(cache.dtype).view(len(source), len(table), *cache.shape[2:])
        cache[blocks] = values.transpose(0, 1).to(cache.device)
