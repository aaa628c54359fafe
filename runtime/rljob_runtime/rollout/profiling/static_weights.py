"""Static weights: a segment with a model's weights, for an engine that runs without a relay.

Benchmarks and profiles use it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.relay import tensors as flat
from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SHARED_MEMORY, SegmentWriter

VERSION = 1
"""Version of the weights."""


@contextmanager
def published(folder: ModelFolder, dtype: str) -> Iterator[Path]:
    """Publish the weights, rounded to `dtype`, as `VERSION`; yield the segment's folder while the context is open."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-", dir=SHARED_MEMORY) as root:
        writer = SegmentWriter.open(Path(root) / "segment")
        try:
            weights = list(folder.weights())
            entries = flat.describe(weights, flat.torch_dtype(dtype))
            slot = writer.begin(layout(VERSION, entries, chunk_bytes=32 << 20))
            flat.gather(weights, slot.manifest, slot.buffer())
            slot.seal([checksum(slot.chunk(index)) for index in range(slot.manifest.chunks)])
            writer.commit(slot)
            yield writer.folder
        finally:
            writer.close()
