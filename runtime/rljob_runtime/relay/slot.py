"""Slot: one file of shared memory that holds one version, or receives one.

    header page · flat buffer · manifest

The header is written last and cleared first, so a slot with a valid header holds a complete version.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from pathlib import Path

from rljob_runtime.relay.manifest import Manifest, aligned

PAGE = 4096
"""Bytes. The flat buffer begins at the second page of the file."""

_MAGIC = b"RLJSEG01"
_HEADER = struct.Struct("<8sQQQQII")
"""magic, version, data offset, manifest offset, manifest length, manifest CRC, CRC of the fields before."""


class SegmentError(Exception):
    """Base class of a segment's errors."""


class SegmentFull(SegmentError):
    """The shared memory is too small for the version; nothing was written."""


def read_manifest(mapping: mmap.mmap) -> Manifest | None:
    """Return the manifest of the complete version in a mapped slot, or None if there is none."""
    raw = mapping[: _HEADER.size]
    magic, version, data, offset, length, manifest_crc, header_crc = _HEADER.unpack(raw)
    if magic != _MAGIC or zlib.crc32(raw[:-4]) != header_crc or data != PAGE or offset + length > len(mapping):
        return None
    text = mapping[offset : offset + length]
    if zlib.crc32(text) != manifest_crc:
        return None
    manifest = Manifest.from_json(text)
    return manifest if manifest.version == version else None


class Slot:
    """A mapped slot file that holds one version, or receives it (a draft).

    `chunk` returns the memory of a chunk to write into, `accept` marks it if its checksum is right, and `missing`
    returns what is missing. `hold` and `release` count the users in this process, such as a sender whose bytes may be
    in the socket's queue. A held slot is not written again.
    """

    def __init__(self, file: SlotFile, manifest: Manifest) -> None:
        self.file = file
        self.manifest = manifest
        self._accepted = bytearray(manifest.chunks)
        self._users = 0
        self._retired = False

    def buffer(self) -> memoryview:
        """Return the complete flat buffer, writable. Raises SegmentFull if there is not enough memory."""
        self.file.reserve(PAGE + self.manifest.total_bytes)
        return self._view(0, self.manifest.total_bytes)

    def chunk(self, index: int) -> memoryview:
        """Return the memory of chunk `index`, writable. Raises SegmentFull if there is not enough memory."""
        start, nbytes = self.manifest.chunk_range(index)
        self.file.reserve(PAGE + start + nbytes)
        return self._view(start, nbytes)

    def accept(self, index: int, checksum: int) -> bool:
        """Mark chunk `index` as present if `checksum`, computed over its memory, equals the manifest's."""
        if self.manifest.checksums[index] != checksum:
            return False
        self._accepted[index] = 1
        return True

    def seal(self, checksums: list[int]) -> None:
        """Set the checksums of a layout whose buffer was filled here, so that every chunk is present."""
        self.manifest = self.manifest.seal(checksums)
        self._accepted = bytearray(b"\1") * self.manifest.chunks

    def has(self, index: int) -> bool:
        """Return whether chunk `index` is present and verified."""
        return bool(self._accepted[index])

    @property
    def accepted(self) -> int:
        """Number of chunks present."""
        return self._accepted.count(1)

    @property
    def complete(self) -> bool:
        """Whether every chunk is present and the content known."""
        return self.manifest.sealed and self.accepted == self.manifest.chunks

    def missing(self) -> list[tuple[int, int]]:
        """Return the missing chunks as half-open ranges of indices, in order."""
        ranges: list[tuple[int, int]] = []
        start = self._accepted.find(0)
        while start >= 0:
            end = self._accepted.find(1, start)
            ranges.append((start, end if end >= 0 else len(self._accepted)))
            start = self._accepted.find(0, end) if end >= 0 else -1
        return ranges

    def hold(self) -> None:
        """Keep the slot's content until `release`."""
        self._users += 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._users -= 1
        self._close_unused()

    def retire(self) -> None:
        """Close the file when the last user is done; the writer no longer needs the slot."""
        self._retired = True
        self._close_unused()

    @property
    def held(self) -> bool:
        """True while a user in this process reads from it."""
        return self._users > 0

    def write_header(self) -> None:
        """Write manifest and header: from then on a reader that finds this slot accepts it."""
        text = self.manifest.to_json()
        offset = _manifest_offset(self.manifest)
        mapping = self.file.mapping
        mapping[offset : offset + len(text)] = text
        fields = _HEADER.pack(_MAGIC, self.manifest.version, PAGE, offset, len(text), zlib.crc32(text), 0)[:-4]
        mapping[: _HEADER.size] = fields + struct.pack("<I", zlib.crc32(fields))

    def _view(self, start: int, nbytes: int) -> memoryview:
        return memoryview(self.file.mapping)[PAGE + start : PAGE + start + nbytes]

    def _close_unused(self) -> None:
        if self._retired and not self._users:
            self.file.close()


class SlotFile:
    """File behind a slot, of fixed length.

    Memory is reserved from the front as it is needed. Too little memory is thus an error here, never a fault in the
    middle of a copy, and a large version does not wait until all of it is zeroed.
    """

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size = size
        self.mapping = mmap.mmap(descriptor, size)
        self._reserved = 0

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> SlotFile:
        """Create a file large enough for `manifest`, locked for writing. Raises SegmentFull before writing anything."""
        size = slot_bytes(manifest)
        available = _available(path.parent)
        if size > available:
            raise SegmentFull(_too_small(path.parent, size, available))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, size)
            file = cls(path, descriptor, size)
            file.reserve(PAGE)
            file._allocate(_manifest_offset(manifest), size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        return file

    @classmethod
    def existing(cls, path: Path) -> SlotFile:
        """Open a file that an earlier writer left."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return cls(path, descriptor, os.fstat(descriptor).st_size)

    def reserve(self, end: int) -> None:
        """Make sure that the first `end` bytes have memory. Raises SegmentFull."""
        if end > self._reserved:
            self._allocate(self._reserved, end)
            self._reserved = end

    def lock(self) -> bool:
        """Lock the file for writing; return False while a reader pins it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let readers pin the file."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def clear_header(self) -> None:
        """Clear the header before the buffer is written."""
        self.mapping[: _HEADER.size] = bytes(_HEADER.size)

    def close(self) -> None:
        """Close the descriptor. The memory stays mapped while views of it are alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _allocate(self, start: int, end: int) -> None:
        try:
            os.posix_fallocate(self.descriptor, start, end - start)
        except OSError as error:
            folder = self.path.parent
            raise SegmentFull(f"{_too_small(folder, end - start, _available(folder))} ({error.strerror})") from error


def slot_bytes(manifest: Manifest) -> int:
    """Return the size of a file that can hold `manifest`'s version."""
    return _manifest_offset(manifest) + aligned(manifest.max_json_bytes(), PAGE)


def _manifest_offset(manifest: Manifest) -> int:
    return PAGE + aligned(manifest.total_bytes, PAGE)


def _available(folder: Path) -> int:
    file_system = os.statvfs(folder)
    return file_system.f_bavail * file_system.f_frsize


def _too_small(folder: Path, size: int, available: int) -> str:
    return (
        f"{folder}: needs {size:,} more bytes of shared memory and {available:,} are free; "
        "two versions of the weights must fit (the pod template's size limit of /dev/shm)"
    )
