"""Safetensors writer: writes a file tensor by tensor, so that gathering a sharded model needs memory for one tensor.

The format is a length, a JSON header (names, types, shapes, offsets) and the raw data. The library's own writer needs
all tensors together. The library reads the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Written:
    """A file on the disk."""

    bytes: int
    sha256: str


def data_bytes(shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> int:
    """Return the size of tensors with these shapes."""
    return sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize


def write_tensors(
    path: Path, shapes: Mapping[str, torch.Size], dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]]
) -> Written:
    """Write full tensors as `dtype`, in the order of `shapes`, and sync the file.

    Raises `OSError` from the disk, and `ValueError` when the tensors do not match `shapes`.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            digest.update(piece)
            file.write(piece)
        for (name, shape), (given, tensor) in zip(shapes.items(), tensors, strict=True):
            if given != name or tensor.shape != shape:
                raise ValueError(f"got tensor {given} {list(tensor.shape)} where {name} {list(shape)} was announced")
            raw = tensor.detach().to("cpu", dtype).contiguous().view(-1).view(torch.uint8).numpy().data
            digest.update(raw)
            file.write(raw)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return Written(size, digest.hexdigest())


def write_text(path: Path, text: str) -> Written:
    """Write a small file and sync it."""
    raw = text.encode()
    with path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    return Written(len(raw), hashlib.sha256(raw).hexdigest())


def file_sha256(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
