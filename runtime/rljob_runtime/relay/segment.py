"""The shared-memory weight store of one machine: one writer, any number of readers, never a torn version.

A segment is a folder (in production below /dev/shm) with two slot files and the symbolic link `current`:

    writer.lock         held (flock) by the writing process for as long as it lives
    slot-0, slot-1      header page · flat buffer · manifest
    current -> slot-N   replaced atomically when a version is whole; readers start here

*Commit* is one rename: everything before it leaves the previous version in place, whatever dies. *Readers* map the slot
and hold a shared flock on it through the mapping itself (a mapping keeps a duplicate of the descriptor it was made
from), so the pin lasts exactly as long as the memory is in use and ends with the process. *The writer* never waits for
readers: a slot still pinned is unlinked, its memory stays with those who map it, and a fresh file takes its place.
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
"""Folders below the shared root that belong to a job start with it; `sweep` looks at nothing else."""

_LINK = "current"
_LOCK = "writer.lock"
_SLOTS = ("slot-0", "slot-1")
_READ_SECONDS = 5.0
_LOCK_SECONDS = 1.0


class NoVersion(SegmentError):
    """Nothing was committed to this segment yet, or the segment does not exist."""


class SegmentBusy(SegmentError):
    """Another live process writes this segment."""


class SegmentCorrupt(SegmentError):
    """The committed slot cannot be read: its header or manifest is damaged."""


class IncompleteVersion(SegmentError):
    """A commit was asked for before every chunk was verified."""


class VersionOrder(SegmentError):
    """A commit would go back to an older version, or reuse a number for other content."""


# --- readers ---------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """One whole version, mapped. The buffer's bytes do not change while any view of it is alive; a write to it (the
    mapping is private) changes the caller's copy of that page only."""

    manifest: Manifest
    buffer: memoryview


class Segment:
    """Read access to a segment. Opening is free and never fails; the segment may come into being later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | str) -> Segment:
        """The segment in `folder`."""
        return cls(Path(folder))

    def current(self) -> Weights:
        """The newest whole version, mapped without a copy and pinned until the last view of its buffer is dropped.

        Raises NoVersion before the first commit, SegmentCorrupt when the committed slot stays unreadable.
        """
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            descriptor = self._open_current()
            if descriptor is not None:
                try:
                    weights = _map_whole(descriptor)
                finally:
                    os.close(descriptor)
                if weights is not None:
                    return weights
            # The writer took the slot again between our reading the link and pinning it: the link is newer now.
            if time.monotonic() > deadline:
                raise SegmentCorrupt(f"{self.folder}: the current slot has no valid header")
            time.sleep(0.001)

    def version(self) -> int | None:
        """The newest whole version, or None before the first commit."""
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
                raise NoVersion(f"{self.folder}: no version was committed yet") from None
            return None  # The slot behind the link is being replaced.


def _map_whole(descriptor: int) -> Weights | None:
    """Pin and map the slot, or None when it is being written or holds nothing whole."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    size = os.fstat(descriptor).st_size
    if size < PAGE:
        return None
    # Private and writable, so that torch takes the buffer without a copy, and no reader can damage another's weights.
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
        """Take over `folder`, making it if need be. A version that an earlier process committed is kept; what it left
        unfinished is removed. Raises SegmentBusy while another process writes it."""
        writer = cls(folder, _take_lock(folder))
        writer._adopt()
        return writer

    def begin(self, manifest: Manifest) -> Slot:
        """A draft for `manifest` in the slot that is not current; an unfinished draft is given up.

        Raises SegmentFull, before anything is written, when the shared memory cannot hold it."""
        file = self._reusable_file(slot_bytes(manifest))
        if file is None:
            if self._spare is not None:
                self._spare.retire()
                self._spare = None
            path = self.folder / (_SLOTS[0] if self.current is None else _other(self.current.file.path.name))
            path.unlink(missing_ok=True)  # Those who map it or read from it keep its memory.
            file = SlotFile.create(path, manifest)
        file.clear_header()
        self._spare = Slot(file, manifest)
        return self._spare

    def owns(self, draft: Slot) -> bool:
        """Whether `draft` is still the one being written: a later `begin` takes its place."""
        return draft is self._spare

    def commit(self, draft: Slot) -> None:
        """Make `draft` the current version in one atomic step.

        Raises IncompleteVersion or VersionOrder, and then changes nothing.
        """
        version = draft.manifest.version
        if not self.owns(draft) or not draft.whole:
            raise IncompleteVersion(f"version {version}: {draft.accepted} of {draft.manifest.chunks} chunks verified")
        if self.current is not None and version <= self.current.manifest.version:
            raise VersionOrder(f"version {version} after {self.current.manifest.version}: it must be higher")
        draft.write_header()
        draft.file.unlock()  # Readers may pin it from here on; the link is what they find it by.
        _point(self.folder / _LINK, draft.file.path.name)
        self.current, self._spare = draft, self.current

    def close(self) -> None:
        """Remove the segment and let go of it. Versions that readers have mapped stay theirs."""
        for slot in (self.current, self._spare):
            if slot is not None:
                slot.retire()
        self.current = self._spare = None
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _reusable_file(self, size: int) -> SlotFile | None:
        """The spare slot's file (its pages are in place), unless it has another size or someone still reads it."""
        spare = self._spare
        if spare is None or spare.held or spare.file.size != size or not spare.file.lock():
            return None
        return spare.file

    def _adopt(self) -> None:
        link = self.folder / _LINK
        target = self.folder / os.readlink(link) if link.is_symlink() else None
        if target is not None and target.exists():
            self.current = _whole_slot(target)
        if self.current is None:
            link.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name not in (_LOCK, _LINK) and (self.current is None or path != self.current.file.path):
                path.unlink()


def sweep(root: Path = SHARED_MEMORY, keep: Path | None = None) -> list[Path]:
    """Remove the segments whose writer is dead, except `keep`, from the folders of jobs below `root`; returns them.

    A process that was killed leaves its segment behind: memory that nobody would free."""
    removed = []
    for path in sorted([*root.glob(f"{PREFIX}*/{_LOCK}"), *root.glob(f"{PREFIX}*/*/{_LOCK}")]):
        folder = path.parent
        if folder == keep:
            continue
        try:
            lock = _take_lock(folder, patience=0.0)
        except (SegmentBusy, PermissionError):
            continue  # Its writer lives, or it is another user's.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        removed.append(folder)
        if folder.parent != root:
            with contextlib.suppress(OSError):  # Others are still in the job's folder.
                folder.parent.rmdir()
    return removed


def _take_lock(folder: Path, patience: float = _LOCK_SECONDS) -> int:
    """Hold the folder's writer lock; the descriptor is the lock. Waits `patience` seconds for another holder."""
    deadline = time.monotonic() + patience
    while True:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, FileExistsError):
            if folder.exists() and not folder.is_dir():
                raise
            continue  # A sweep removed the folder after our mkdir, or between the halves of it.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise SegmentBusy(f"{folder}: another process writes this segment") from None
            time.sleep(0.02)  # It may be a sweep that looks whether we live.
            continue
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # A sweep removed the folder between our opening and locking the file.


def _other(name: str) -> str:
    return _SLOTS[1 - _SLOTS.index(name)]


def _whole_slot(path: Path) -> Slot | None:
    """The slot of an earlier writer when it holds a whole version."""
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
