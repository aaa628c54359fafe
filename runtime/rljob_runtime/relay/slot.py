"""One slot of a segment: a file of shared memory that holds one version, or is being given one.

    header page · flat buffer · manifest

The header is written last and withdrawn first, so a slot with a valid header holds a whole version.
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
    """Base of what a segment may raise."""


class SegmentFull(SegmentError):
    """The shared memory is too small for the version; nothing was written."""


def read_manifest(mapping: mmap.mmap) -> Manifest | None:
    """The manifest of the whole version in a mapped slot, or None when there is none."""
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
    """A mapped slot file that holds, or is being given, one version.

    While it is a draft, `chunk` hands out the memory of a chunk to write into, `accept` marks it when its checksum is
    right, and `missing` says what is still wanted. `hold` and `release` count those in this process who still read from
    it (a sender whose bytes may be in the socket's queue): a held slot is not written again.
    """

    def __init__(self, file: SlotFile, manifest: Manifest) -> None:
        self.file = file
        self.manifest = manifest
        self._accepted = bytearray(manifest.chunks)
        self._users = 0
        self._retired = False

    def buffer(self) -> memoryview:
        """The whole flat buffer, writable. Raises SegmentFull when the memory is not there."""
        self.file.reserve(PAGE + self.manifest.total_bytes)
        return self._view(0, self.manifest.total_bytes)

    def chunk(self, index: int) -> memoryview:
        """The memory of chunk `index`, writable. Raises SegmentFull when the memory is not there."""
        start, nbytes = self.manifest.chunk_range(index)
        self.file.reserve(PAGE + start + nbytes)
        return self._view(start, nbytes)

    def accept(self, index: int, checksum: int) -> bool:
        """Mark chunk `index` as present when `checksum`, taken over its memory, is the manifest's."""
        if self.manifest.checksums[index] != checksum:
            return False
        self._accepted[index] = 1
        return True

    def seal(self, checksums: list[int]) -> None:
        """Give a layout its content's checksums: the buffer was filled here, so every chunk is present."""
        self.manifest = self.manifest.seal(checksums)
        self._accepted = bytearray(b"\1") * self.manifest.chunks

    def has(self, index: int) -> bool:
        """Whether chunk `index` is present and verified."""
        return bool(self._accepted[index])

    @property
    def accepted(self) -> int:
        """Number of chunks present."""
        return self._accepted.count(1)

    @property
    def whole(self) -> bool:
        """Whether every chunk is present and the content known."""
        return self.manifest.sealed and self.accepted == self.manifest.chunks

    def missing(self) -> list[tuple[int, int]]:
        """What is still wanted, as half-open ranges of chunk indices in order."""
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
        """The writer gives the slot up: its file goes when the last user is done."""
        self._retired = True
        self._close_unused()

    @property
    def held(self) -> bool:
        """Whether someone in this process still reads from it."""
        return self._users > 0

    def write_header(self) -> None:
        """Write manifest and header: from now on a reader that finds this slot accepts it."""
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
    """The file behind a slot. Its length is fixed; memory is reserved from the front as it is needed, so too little
    of it is an error here, never a fault in the middle of a copy, and a large version does not wait to be zeroed."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size = size
        self.mapping = mmap.mmap(descriptor, size)
        self._reserved = 0

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> SlotFile:
        """A new file large enough for `manifest`, locked for writing. Raises SegmentFull before writing anything."""
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
        """A file that an earlier writer left."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return cls(path, descriptor, os.fstat(descriptor).st_size)

    def reserve(self, end: int) -> None:
        """Make sure that the first `end` bytes have memory. Raises SegmentFull."""
        if end > self._reserved:
            self._allocate(self._reserved, end)
            self._reserved = end

    def lock(self) -> bool:
        """Take the file for writing; False while a reader pins it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let readers pin the file."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def clear_header(self) -> None:
        """Withdraw what the file held before its buffer is written."""
        self.mapping[: _HEADER.size] = bytes(_HEADER.size)

    def close(self) -> None:
        """Let go of the descriptor. The memory stays mapped while views of it are alive."""
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
    """Size of the file that can hold `manifest`'s version."""
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
