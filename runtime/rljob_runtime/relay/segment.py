"""Segment: the shared-memory weight store of one machine. One writer, any number of readers, never a torn version.

A segment is a folder (in production below /dev/shm) with two slot files and the symbolic link `current`:

    writer.lock         locked (flock) by the writing process for as long as it lives
    slot-0, slot-1      header page · flat buffer · manifest
    current -> slot-N   replaced atomically when a version is complete; readers start here

*Commit* is one rename: any death before it leaves the previous version in place. *Readers* map the slot and hold a
shared flock on it through the mapping itself (a mapping keeps a duplicate of its descriptor). The pin thus lasts
exactly as long as the memory is in use, and ends with the process. *The writer* never waits for readers: it unlinks a
slot that is still pinned, whose memory stays with its readers, and makes a new file.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from rljob_runtime.relay.manifest import Manifest
from rljob_runtime.relay.slot import PAGE, SegmentError, Slot, SlotFile, read_manifest, slot_bytes

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "rljob-"
"""Prefix of the folders below the shared root that belong to a job. `sweep_segments` considers no others."""

_LINK = "current"
_LOCK = "writer.lock"
_SLOTS = ("slot-0", "slot-1")
_READ_SECONDS = 5.0
_LOCK_SECONDS = 1.0


class NoVersion(SegmentError):
    """No version is committed to this segment, or the segment does not exist."""


class SegmentBusy(SegmentError):
    """Another live process writes this segment."""


class SegmentCorrupt(SegmentError):
    """The committed slot cannot be read: its header or manifest is damaged."""


class IncompleteVersion(SegmentError):
    """A commit was requested before every chunk was verified."""


class VersionOrder(SegmentError):
    """A commit would go back to an older version, or reuse a number for other content."""


# --- readers ---------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """One complete version, mapped.

    The buffer's bytes do not change while any view of it is alive. The mapping is private: a write changes the caller's
    copy of that page only.
    """

    manifest: Manifest
    buffer: memoryview


class Segment:
    """Read access to a segment. Opening is cheap and never fails; the segment may be created later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | str) -> Segment:
        """Return the segment in `folder`."""
        return cls(Path(folder))

    def current(self) -> Weights:
        """Map the newest complete version without a copy; it is pinned until the last view of its buffer is dropped.

        Raises NoVersion before the first commit, and SegmentCorrupt if the committed slot stays unreadable.
        """
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            descriptor = self._open_current()
            if descriptor is not None:
                try:
                    weights = _map_complete(descriptor)
                finally:
                    os.close(descriptor)
                if weights is not None:
                    return weights
            # The writer reused the slot after we read the link and before we pinned it: the link is newer now.
            if time.monotonic() > deadline:
                raise SegmentCorrupt(f"{self.folder}: the current slot has no valid header")
            time.sleep(0.001)

    def version(self) -> int | None:
        """Return the newest complete version, or None before the first commit."""
        try:
            return self.current().manifest.version
        except NoVersion:
            return None

    def _open_current(self) -> int | None:
        link = self.folder / _LINK
        try:
            return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if not link.is_symlink():
                raise NoVersion(f"{self.folder}: no version is committed") from None
            return None  # The slot behind the link is being replaced.


def _map_complete(descriptor: int) -> Weights | None:
    """Pin and map the slot; return None if it is being written or holds no complete version."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    size = os.fstat(descriptor).st_size
    if size < PAGE:
        return None
    # Writable, so that torch takes the buffer without a copy. Private, so that no reader damages another's weights.
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    manifest = read_manifest(mapping)
    if manifest is None:
        return None
    return Weights(manifest, memoryview(mapping)[PAGE : PAGE + manifest.total_bytes])


# --- the writer ------------------------------------------------------------------------------------------------------


class SegmentWriter:
    """The one writer of a segment. Not thread-safe: `version_store.VersionStore` serialises its users."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.current: Slot | None = None
        self._lock = lock
        self._spare: Slot | None = None

    @classmethod
    def open(cls, folder: Path) -> SegmentWriter:
        """Take over `folder`, and create it if needed. Raises SegmentBusy while another process writes it.

        A version that an earlier process committed is kept; unfinished ones are removed.
        """
        writer = cls(folder, _take_lock(folder))
        writer._adopt()
        return writer

    def begin(self, manifest: Manifest) -> Slot:
        """Start a draft for `manifest` in the slot that is not current; an unfinished draft is abandoned.

        Raises SegmentFull, before anything is written, if the shared memory is too small.
        """
        file = self._reusable_file(slot_bytes(manifest))
        if file is None:
            if self._spare is not None:
                self._spare.retire()
                self._spare = None
            path = self.folder / (_SLOTS[0] if self.current is None else _other(self.current.file.path.name))
            path.unlink(missing_ok=True)  # Processes that map it or read from it keep its memory.
            file = SlotFile.create(path, manifest)
        file.clear_header()
        self._spare = Slot(file, manifest)
        return self._spare

    def owns(self, draft: Slot) -> bool:
        """Return whether `draft` is the one being written: a later `begin` replaces it."""
        return draft is self._spare

    def commit(self, draft: Slot) -> None:
        """Make `draft` the current version in one atomic step.

        Raises IncompleteVersion or VersionOrder, and then changes nothing.
        """
        version = draft.manifest.version
        if not self.owns(draft) or not draft.complete:
            raise IncompleteVersion(f"version {version}: {draft.accepted} of {draft.manifest.chunks} chunks verified")
        if self.current is not None and version <= self.current.manifest.version:
            raise VersionOrder(f"version {version} after {self.current.manifest.version}: it must be higher")
        draft.write_header()
        draft.file.unlock()  # Readers may pin it from here on; they find it by the link.
        _point(self.folder / _LINK, draft.file.path.name)
        self.current, self._spare = draft, self.current

    def close(self) -> None:
        """Remove the segment and release its lock. Readers keep the versions that they have mapped."""
        for slot in (self.current, self._spare):
            if slot is not None:
                slot.retire()
        self.current = self._spare = None
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _reusable_file(self, size: int) -> SlotFile | None:
        """Return the spare slot's file, whose pages are allocated, unless its size differs or a reader uses it."""
        spare = self._spare
        if spare is None or spare.held or spare.file.size != size or not spare.file.lock():
            return None
        return spare.file

    def _adopt(self) -> None:
        link = self.folder / _LINK
        target = self.folder / os.readlink(link) if link.is_symlink() else None
        if target is not None and target.exists():
            self.current = _complete_slot(target)
        if self.current is None:
            link.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name not in (_LOCK, _LINK) and (self.current is None or path != self.current.file.path):
                path.unlink()


def sweep_segments(root: Path = SHARED_MEMORY, keep: Path | None = None) -> list[Path]:
    """Remove and return the segments below `root` whose writer is dead, except `keep`.

    A killed process leaves its segment behind, and no other process would free its memory.
    """
    removed = []
    for path in sorted([*root.glob(f"{PREFIX}*/{_LOCK}"), *root.glob(f"{PREFIX}*/*/{_LOCK}")]):
        folder = path.parent
        if folder == keep:
            continue
        try:
            lock = _take_lock(folder, patience=0.0)
        except (SegmentBusy, PermissionError):
            continue  # Its writer lives, or it belongs to another user.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        removed.append(folder)
        if folder.parent != root:
            with contextlib.suppress(OSError):  # The job's folder still contains other segments.
                folder.parent.rmdir()
    return removed


def _take_lock(folder: Path, patience: float = _LOCK_SECONDS) -> int:
    """Take the folder's writer lock and return the descriptor that holds it.

    Waits `patience` seconds for another holder.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, FileExistsError):
            if folder.exists() and not folder.is_dir():
                raise
            continue  # A sweep removed the folder during or after our mkdir.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise SegmentBusy(f"{folder}: another process writes this segment") from None
            time.sleep(0.02)  # The holder may be a sweep that checks for a live writer.
            continue
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # A sweep removed the folder after we opened the file and before we locked it.


def _other(name: str) -> str:
    return _SLOTS[1 - _SLOTS.index(name)]


def _complete_slot(path: Path) -> Slot | None:
    """Return the slot of an earlier writer if it holds a complete version."""
    if path.stat().st_size < PAGE:
        return None
    file = SlotFile.existing(path)
    manifest = read_manifest(file.mapping)
    if manifest is None:
        file.close()
        return None
    slot = Slot(file, manifest)
    slot.seal(list(manifest.checksums))
    return slot


def _point(link: Path, target: str) -> None:
    """Replace `link` by one to `target`, atomically."""
    fresh = link.with_name(link.name + ".new")
    fresh.unlink(missing_ok=True)
    os.symlink(target, fresh)
    os.replace(fresh, link)
