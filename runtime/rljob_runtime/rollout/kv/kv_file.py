"""KV file: full KV blocks of responses in the machine's shared memory, from one engine for another.

    header page · data of each response, from a page on · index (JSON)

The header is written last, so a file with a valid header is complete. The index names where the KV comes from (job,
machine, weight version), what its bytes mean (`KvShape`), and for each response its tokens and a checksum of each head.
The writer locks its file for as long as it lives; `sweep_kv` removes files whose writer is dead. A writer that
takes memory and a sweep hold the folder's lock, so that no two writers count on the same free bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import uuid
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from rljob_runtime.protocols import Mismatch
from rljob_runtime.relay.segment import PREFIX
from rljob_runtime.rollout.kv.layout import KvShape

PAGE = 4096
SUFFIX = ".kv"
FOLDER_SUFFIX = "-kv"
"""End of the name of a machine's folder, beside the machine's segment."""
_MAGIC = b"RLJKV001"
_HEADER = struct.Struct("<8sQQII")
"""magic, index offset, index length, index CRC, CRC of the fields before."""
_ANY_CHECKSUM = 0xFFFFFFFF
_TRIES = 5
"""Attempts to make a folder that sweeps remove."""


class NoRoom(Exception):
    """The shared memory is too small for the KV; nothing was written."""


class Unusable(Exception):
    """A KV file cannot be read; `cause` says why."""

    def __init__(self, cause: Mismatch, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Origin:
    """Where KV comes from. All of it must agree before KV is used."""

    job: str
    machine: str
    """With its incarnation: shared memory of an earlier pod is not trusted."""
    weight_version: int


@dataclass(frozen=True)
class Held:
    """The beginning of a response whose KV an engine holds in full blocks."""

    tokens: int
    digest: str
    """`digest` of these tokens."""


@dataclass(frozen=True)
class Entry:
    """KV of one response in a file."""

    tokens: int
    digest: str
    offset: int
    checksums: tuple[int, ...] = ()
    """CRC-32 of each head's bytes."""


@dataclass(frozen=True)
class Index:
    """Content of a KV file."""

    origin: Origin
    shape: KvShape
    responses: Mapping[str, Entry]

    def to_json(self) -> bytes:
        """Return the text that `from_json` reads."""
        rows = {name: [one.tokens, one.digest, one.offset, list(one.checksums)] for name, one in self.responses.items()}
        return json.dumps({"origin": asdict(self.origin), "shape": asdict(self.shape), "responses": rows}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Index:
        """Read an index. Raises ValueError, KeyError or TypeError if the text is none."""
        read: dict[str, Any] = json.loads(text)
        rows = {
            name: Entry(tokens, digest, offset, tuple(checksums))
            for name, (tokens, digest, offset, checksums) in read["responses"].items()
        }
        return cls(Origin(**read["origin"]), KvShape(**read["shape"]), rows)

    def mismatch(
        self, origin: Origin, shape: KvShape | None, response: str, token_ids: Sequence[int]
    ) -> Mismatch | None:
        """Return why a request of these tokens cannot use the KV of `response`; None if it can."""
        if (self.origin.job, self.origin.machine) != (origin.job, origin.machine):
            return Mismatch.FOREIGN
        if self.origin.weight_version != origin.weight_version:
            return Mismatch.VERSION
        if self.shape != shape:
            return Mismatch.SHAPE
        entry = self.responses.get(response)
        if entry is None:
            return Mismatch.MISSING
        if len(token_ids) < entry.tokens or digest(token_ids[: entry.tokens]) != entry.digest:
            return Mismatch.TOKENS
        return None


def digest(token_ids: Sequence[int]) -> str:
    """Return a digest of token ids; equal only for equal ones."""
    return blake2b(array("q", token_ids).tobytes(), digest_size=16).hexdigest()


def plan(origin: Origin, shape: KvShape, held: Mapping[str, Held]) -> Index:
    """Place the responses in a file, each from a page on; the checksums are not known yet."""
    offset, entries = PAGE, {}
    for name, one in held.items():
        entries[name] = Entry(one.tokens, one.digest, offset, (_ANY_CHECKSUM,) * shape.kv_heads)
        offset += _pages(shape.response_bytes(one.tokens))
    return Index(origin, shape, entries)


def checksum(region: torch.Tensor) -> int:
    """Return the CRC-32 of bytes in memory, as a KV file records it for each head."""
    return zlib.crc32(region.contiguous().numpy().data)


class KvFileWriter:
    """A KV file that is being written, then held for its readers until `close`. Engines write its regions."""

    def __init__(self, path: Path, descriptor: int, index: Index) -> None:
        self.path = path
        self.index = index
        self._descriptor = descriptor

    @classmethod
    def create(cls, folder: Path, index: Index, keep_free: int = 0) -> KvFileWriter:
        """Make the file of a planned index, with memory for all of it.

        Raises `NoRoom` unless `keep_free` bytes of shared memory stay free, and OSError if the folder cannot be used.
        """
        for tried in range(_TRIES):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(folder):
                    return cls._allocate(folder, index, keep_free)
            except (FileNotFoundError, FileExistsError):  # A sweep removed the empty folder, or does so now.
                if tried == _TRIES - 1:
                    raise
        raise AssertionError

    @classmethod
    def _allocate(cls, folder: Path, index: Index, keep_free: int) -> KvFileWriter:
        """Check the room and take it. The caller holds the folder's lock."""
        size = _index_offset(index) + _pages(len(index.to_json()))
        free = _free(folder)
        if size + keep_free > free:
            raise NoRoom(_no_room(folder, index, size, keep_free, free))
        path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without this, too little memory would end a process in the middle of its copy.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise NoRoom(f"{_no_room(folder, index, size, keep_free, _free(folder))} ({error.strerror})") from error
        return cls(path, descriptor, index)

    def seal(self, checksums: Mapping[str, Sequence[int]]) -> None:
        """Complete the file: the responses that all heads were written of, with the checksum of each head."""
        entries = {name: replace(self.index.responses[name], checksums=tuple(each)) for name, each in checksums.items()}
        offset = _index_offset(self.index)
        self.index = replace(self.index, responses=entries)
        text = self.index.to_json()
        os.pwrite(self._descriptor, text, offset)
        fields = _HEADER.pack(_MAGIC, offset, len(text), zlib.crc32(text), 0)[:-4]
        os.pwrite(self._descriptor, fields + struct.pack("<I", zlib.crc32(fields)), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of KV in it."""
        return sum(self.index.shape.response_bytes(entry.tokens) for entry in self.index.responses.values())

    def close(self) -> None:
        """Remove the file. Readers keep what they have mapped."""
        self.path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class KvRegions:
    """The mapped data of a KV file, by response and heads."""

    def __init__(self, path: Path, index: Index, *, writable: bool = False) -> None:
        """Map the file. Raises OSError or ValueError if it is gone or empty."""
        self._index = index
        with path.open("r+b" if writable else "rb") as file:
            # A private mapping is writable for torch, and no reader damages the file.
            kind = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
            self._mapping = mmap.mmap(file.fileno(), 0, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def region(self, response: str, heads: range) -> torch.Tensor:
        """Return the bytes of these heads as [heads, layers, blocks, block_bytes]; a view, valid while it is alive."""
        shape, entry = self._index.shape, self._index.responses[response]
        each = shape.head_bytes(entry.tokens)
        flat = torch.frombuffer(
            self._mapping, dtype=torch.uint8, count=len(heads) * each, offset=entry.offset + heads.start * each
        )
        return flat.view(len(heads), shape.layers, shape.full_blocks(entry.tokens), shape.block_bytes)

    def checksums(self, response: str, heads: range) -> dict[int, int]:
        """Return the checksum of each of these heads, as it is in memory now."""
        return {head: checksum(one) for head, one in zip(heads, self.region(response, heads), strict=True)}

    def is_intact(self, response: str, heads: range) -> bool:
        """Return whether these heads are what was written."""
        recorded = self._index.responses[response].checksums
        return all(recorded[head] == now for head, now in self.checksums(response, heads).items())


def read_index(path: Path) -> Index:
    """Read the index of a complete file. Raises `Unusable`."""
    try:
        raw = _read(path, 0, _HEADER.size)
        magic, offset, length, index_crc, header_crc = _HEADER.unpack(raw)
        if magic != _MAGIC or zlib.crc32(raw[:-4]) != header_crc:
            raise Unusable(Mismatch.DAMAGED, f"{path.name}: the file is incomplete or its header is damaged")
        text = _read(path, offset, length)
        if zlib.crc32(text) != index_crc:
            raise Unusable(Mismatch.DAMAGED, f"{path.name}: the index is damaged")
        return Index.from_json(text)
    except FileNotFoundError as error:
        raise Unusable(Mismatch.MISSING, f"{path.name}: there is no such file") from error
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise Unusable(Mismatch.DAMAGED, f"{path.name}: {error}") from error


def sweep_kv(folder: Path) -> list[Path]:
    """Remove and return the KV files of dead writers, and the folder if it is empty then.

    A killed process leaves its file behind, and no other process would free its memory. Folders in which a writer takes
    memory, and those of other users, are passed over.
    """
    removed: list[Path] = []
    with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError), _locked(folder, fcntl.LOCK_NB):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if _is_of_dead_writer(path):
                path.unlink(missing_ok=True)
                removed.append(path)
        _remove_empty(folder)
    return removed


def sweep_kv_of_all_jobs(root: Path) -> list[Path]:
    """Sweep the KV folders of every job below `root`: a local run that was killed may never start again."""
    removed = []
    for folder in sorted(root.glob(f"{PREFIX}*/*{FOLDER_SUFFIX}")):
        removed += sweep_kv(folder)
        _remove_empty(folder.parent)
    return removed


def remove_older(folder: Path, weight_version: int) -> list[Path]:
    """Remove and return the complete files of earlier weight versions, also those of living writers.

    Readers keep what they have mapped.
    """
    removed = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        # A file that cannot be read is being written, or `sweep_kv` removes it.
        with contextlib.suppress(Unusable):
            if read_index(path).origin.weight_version < weight_version:
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def needed_for_weights(segment: Path) -> int:
    """Return the bytes that a relay's segment will still allocate until it has two versions of the present size."""
    slots = []
    for path in segment.glob("slot-*"):
        with contextlib.suppress(FileNotFoundError):  # The relay has just replaced it.
            slots.append(path.stat())
    largest = max((slot.st_size for slot in slots), default=0)
    return max(0, 2 * largest - sum(512 * slot.st_blocks for slot in slots))


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a folder; wait for it unless `flags` say LOCK_NB.

    Raises FileNotFoundError if the folder is gone, and BlockingIOError instead of waiting.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(f"{folder}: another folder took its place")
        yield
    finally:
        os.close(descriptor)


def _is_of_dead_writer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False  # It has just been removed, or its writer lives.
    return True


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Something is in it.
        folder.rmdir()


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _index_offset(index: Index) -> int:
    ends = (one.offset + _pages(index.shape.response_bytes(one.tokens)) for one in index.responses.values())
    return max(ends, default=PAGE)


def room_beside(segment: Path) -> int:
    """Return the free bytes of the shared memory, without those that a relay's segment still needs.

    Raises OSError if there is no segment."""
    return max(0, _free(segment) - needed_for_weights(segment))


def written_bytes(folder: Path) -> int:
    """Return the bytes of shared memory that the KV files in a folder take."""
    taken = 0
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            taken += path.stat().st_blocks * 512
    return taken


def _free(folder: Path) -> int:
    file_system = os.statvfs(folder)
    return file_system.f_bavail * file_system.f_frsize


def _no_room(folder: Path, index: Index, size: int, keep_free: int, free: int) -> str:
    return (
        f"{folder}: the KV of {len(index.responses)} responses needs {size:,} bytes of shared memory, the weights need "
        f"{keep_free:,} more, and {free:,} are free"
    )
