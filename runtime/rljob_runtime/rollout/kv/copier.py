"""KV copier: the part of an engine that copies blocks to KV files and from them. Each engine has one for its rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from rljob_runtime.protocols import KvStats
from rljob_runtime.rollout.kv.kv_file import Index, KvRegions, Unusable, read_index
from rljob_runtime.rollout.kv.layout import KvShape, gather, scatter

CHECKSUM_THREADS = 8
"""Threads that compute checksums. One computes 1.8 GB/s beside an H100, whose copies run at 5 to 13 GB/s."""
Job = TypeVar("Job")
Value = TypeVar("Value")


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
        regions = KvRegions(path, index, writable=True)
        first = self._written.start - self._heads.start
        own = [cache[:, first : first + len(self._written)] for cache in self._caches]
        for name, table in tables.items():
            gather(own, table, regions.region(name, self._written))
        places = [(name, head) for name in tables for head in self._written]
        found = _concurrently(lambda place: regions.checksums(place[0], _only(place[1])), places)
        checksums: dict[str, dict[int, int]] = {name: {} for name in tables}
        for (name, _), one in zip(places, found, strict=True):
            checksums[name] |= one
        return checksums

    def open(self, responses: Sequence[tuple[Path, str]]) -> list[bool]:
        """Map the files; return for each response whether its heads are intact. Files stay mapped until `release`."""
        mapped = [self._map(path) for path, _ in responses]
        places = [
            (regions, response, head)
            for regions, (_, response) in zip(mapped, responses, strict=True)
            for head in self._heads
        ]
        intact, heads = _concurrently(lambda place: _is_intact(*place), places), len(self._heads)
        return [all(intact[heads * place : heads * (place + 1)]) for place in range(len(responses))]

    def _map(self, path: Path) -> KvRegions | None:
        try:
            if path not in self._opened:
                self._opened[path] = KvRegions(path, read_index(path))
            return self._opened[path]
        except (Unusable, OSError, ValueError):
            return None

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

    def read_back(self, path: Path, response: str, tokens: int, table: Sequence[int]) -> KvStats:
        """Copy the first tokens of an opened response to the first of these blocks; return what it took."""
        source = self.source(path, response, tokens)
        return self.read(source, table[: source.shape[2]])

    def release(self) -> None:
        """Forget the opened files. A source keeps its own mapped."""
        self._opened.clear()


def _is_intact(regions: KvRegions | None, response: str, head: int) -> bool:
    try:
        return regions is not None and regions.is_intact(response, _only(head))
    except (KeyError, IndexError, ValueError):
        return False


def _only(head: int) -> range:
    return range(head, head + 1)


def _concurrently(work: Callable[[Job], Value], jobs: Iterable[Job]) -> list[Value]:
    """Return `work` of each job. A checksum holds no lock of the interpreter."""
    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        return list(pool.map(work, jobs))
