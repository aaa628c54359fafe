"""Manifest of one weight version: the place of each tensor in the flat buffer, and the checksum of every chunk.

A version is one flat buffer of `total_bytes`. Its tensors stand in publishing order, each at an aligned offset, with
zeros between them. The buffer is cut into chunks of `chunk_bytes` (the last may be shorter): the unit of sending,
verifying, forwarding and repeating. Two manifests are equal exactly when layout, version and content are equal. The
manifest therefore shows whether a version number was used twice for different weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

ALIGNMENT = 256
"""Bytes. Every tensor starts at a multiple of it: enough for any element type and for vectorised or device copies."""

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element of every dtype that may be published, by its torch name without the prefix."""

_MAX_CHECKSUM = 2**32 - 1

Checksum = Annotated[int, Field(ge=0, le=_MAX_CHECKSUM)]
Count = Annotated[int, Field(ge=0)]


class ManifestError(ValueError):
    """The manifest is inconsistent. The message names the field, its value and a valid value."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorEntry(_Model):
    """One tensor: `shape` in elements, row-major, at byte `offset` of the buffer."""

    name: str = Field(min_length=1)
    dtype: str
    shape: tuple[Count, ...]
    offset: Count
    nbytes: Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"dtype is {self.dtype!r}; one of {', '.join(ITEM_SIZES)} would be right")
        if self.offset % ALIGNMENT:
            raise ValueError(f"offset of {self.name!r} is {self.offset}; a multiple of {ALIGNMENT} would be right")
        if self.nbytes != (expected := math.prod(self.shape) * ITEM_SIZES[self.dtype]):
            right = f"{expected} would be right for {self.dtype} {list(self.shape)}"
            raise ValueError(f"nbytes of {self.name!r} is {self.nbytes}; {right}")
        return self


class Manifest(_Model):
    """Layout and content of one version.

    `checksums[i]` is the CRC-32 of chunk i. It is empty while the content is unknown (a *layout*, see `layout`). Only a
    sealed manifest is sent or committed.
    """

    version: Count
    tensors: tuple[TensorEntry, ...]
    total_bytes: Count
    chunk_bytes: int = Field(ge=1)
    checksums: tuple[Checksum, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.checksums and len(self.checksums) != self.chunks:
            raise ValueError(
                f"checksums has {len(self.checksums)} entries; one for each of {self.chunks} chunks is right"
            )
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("tensors has the same name twice; every name once would be right")
        end = 0
        for tensor in self.tensors:
            if tensor.offset < end:
                raise ValueError(
                    f"offset of {tensor.name!r} is {tensor.offset}, inside the tensor before; >= {end} is right"
                )
            end = tensor.offset + tensor.nbytes
        if end > self.total_bytes:
            raise ValueError(f"total_bytes is {self.total_bytes}; the last tensor ends at {end}")
        return self

    @property
    def chunks(self) -> int:
        """Number of chunks; zero for an empty buffer."""
        return -(-self.total_bytes // self.chunk_bytes)

    @property
    def sealed(self) -> bool:
        """True when the content is known: every chunk has its checksum."""
        return len(self.checksums) == self.chunks

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Return (offset, nbytes) of chunk `index`. Raises IndexError outside 0 <= index < chunks."""
        if not 0 <= index < self.chunks:
            raise IndexError(f"chunk {index} of {self.chunks}")
        start = index * self.chunk_bytes
        return start, min(self.chunk_bytes, self.total_bytes - start)

    def seal(self, checksums: Iterable[int]) -> Manifest:
        """Return this layout with its content's checksums."""
        return Manifest(**{**dict(self), "checksums": tuple(checksums)})

    def to_json(self) -> bytes:
        """Return UTF-8 JSON, with the same bytes for equal manifests."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Manifest:
        """Parse `text`. Raises ManifestError that names what is wrong."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ManifestError(_explain(error)) from None

    def max_json_bytes(self) -> int:
        """Return an upper bound of `len(to_json())` once sealed, to reserve space before the content is known."""
        return len(self.model_copy(update={"checksums": (_MAX_CHECKSUM,) * self.chunks}).to_json())


def layout(version: int, tensors: Iterable[tuple[str, str, tuple[int, ...]]], chunk_bytes: int) -> Manifest:
    """Return an unsealed manifest that places `(name, dtype, shape)` in the given order at aligned offsets.

    Raises ManifestError for an unknown dtype, a repeated name, or a size below zero.
    """
    entries: list[dict[str, object]] = []
    end = 0
    for name, dtype, shape in tensors:
        if dtype not in ITEM_SIZES:
            raise ManifestError(f"tensor {name!r}: dtype is {dtype!r}; one of {', '.join(ITEM_SIZES)} would be right")
        offset = aligned(end)
        nbytes = math.prod(shape) * ITEM_SIZES[dtype]
        entries.append({"name": name, "dtype": dtype, "shape": tuple(shape), "offset": offset, "nbytes": nbytes})
        end = offset + nbytes
    try:
        fields = {"version": version, "tensors": tuple(entries), "total_bytes": end, "chunk_bytes": chunk_bytes}
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise ManifestError(_explain(error)) from None


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `alignment` that is not below `offset`."""
    return -(-offset // alignment) * alignment


def checksum(data: memoryview | bytes, start: int = 0) -> int:
    """Return the CRC-32 of `data`, continuing from `start`, the checksum of the preceding bytes. Releases the GIL."""
    return zlib.crc32(data, start)


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "manifest"
    return f"{path}: {first['msg']}"
