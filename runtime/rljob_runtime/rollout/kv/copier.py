"""KV copier: the part of an engine that copies blocks to KV files and from them. Each engine has one for its rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rljob_runtime.protocols import KvStats
from rljob_runtime.rollout.kv.kv_file import Index, KvRegions, Unusable, read_index
from rljob_runtime.rollout.kv.layout import KvShape, gather, scatter


class KvCopier:
    """Copies between files and `caches`, a tensor [all blocks, heads, ...] for each layer of this rank.

    `heads` are those that the caches hold, `written` those that this rank writes.
    """

    def __init__(self, caches: Sequence[torch.Tensor], shape: KvShape, heads: range, written: range) -> None:
        self._caches = list(caches)
        self.shape = shape
        self._heads = heads
        self._written = written
        self._opened: dict[Path, KvRegions] = {}

    def write(self, path: Path, index: Index, tables: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int]]:
        """Copy the blocks of each response to the planned file; return the checksum of each head that was written."""
        if not self._written:
            return {name: {} for name in tables}
        regions, checksums = KvRegions(path, index, writable=True), {}
        first = self._written.start - self._heads.start
        own = [cache[:, first : first + len(self._written)] for cache in self._caches]
        for name, table in tables.items():
            gather(own, table, regions.region(name, self._written))
            checksums[name] = regions.checksums(name, self._written)
        return checksums

    def open(self, path: Path, response: str) -> bool:
        """Map a file; return whether the heads of a response are intact. It stays mapped until `release`."""
        try:
            if path not in self._opened:
                self._opened[path] = KvRegions(path, read_index(path))
            return self._opened[path].is_intact(response, self._heads)
        except (Unusable, OSError, KeyError, ValueError):
            return False

    def source(self, path: Path, response: str, tokens: int) -> torch.Tensor:
        """Return the heads of an opened response, up to `tokens`: bytes [heads, layers, blocks, block_bytes]."""
        return self._opened[path].region(response, self._heads)[:, :, : self.shape.full_blocks(tokens)]

    def read(self, source: torch.Tensor, table: Sequence[int]) -> KvStats:
        """Copy a source into blocks `table`; return what it took."""
        began = time.perf_counter()
        scatter(source, self._caches, table)
        return KvStats(
            imported_tokens=len(table) * self.shape.block_size,
            imported_bytes=source.numel(),
            import_seconds=time.perf_counter() - began,
        )

    def release(self) -> None:
        """Forget the opened files. A source keeps its own mapped."""
        self._opened.clear()
