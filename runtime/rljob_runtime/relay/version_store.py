"""Version store: the complete version of one process and the one in transfer, shared by receiver and sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rljob_runtime.relay.manifest import Manifest
from rljob_runtime.relay.segment import SegmentWriter, VersionOrder
from rljob_runtime.relay.slot import Slot


@dataclass
class Counters:
    """Totals since the process started; they only grow. Read them freely, change them with `add`."""

    bytes_received: int = 0
    bytes_sent: int = 0
    chunks_received: int = 0
    chunks_sent: int = 0
    chunks_resent: int = 0
    commits: int = 0
    checksum_failures: int = 0
    connections_refused: int = 0
    connections_lost: int = 0
    unexpected_errors: int = 0
    """Connections that ended by an unexpected error; each is in the log with its traceback."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **amounts: int) -> None:
        """Raise the named counters."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)


class VersionStore:
    """Thread-safe store. One thread at a time fills (`admit`, `accept`, `commit`); any number read and wait.

    `patience`: seconds without progress after which an unfinished version counts as stuck.
    """

    def __init__(self, writer: SegmentWriter, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters = Counters()
        self._writer = writer
        self._patience = patience
        self._clock = clock
        self._draft: Slot | None = None
        self._progress_at = clock()
        self._changed = threading.Condition()

    @property
    def complete(self) -> Slot | None:
        """Newest committed version."""
        return self._writer.current

    @property
    def draft(self) -> Slot | None:
        """Version in transfer."""
        return self._draft

    def begin(self, manifest: Manifest) -> Slot:
        """Start a draft; an unfinished one is abandoned. Raises SegmentFull, and then no version is in transfer."""
        with self._changed:
            self._draft = None
            draft = self._writer.begin(manifest)
            # An unsealed draft is being filled by this process and is not visible until its commit.
            self._draft = draft if manifest.sealed else None
            self._note_progress()
            return draft

    def admit(self, manifest: Manifest) -> Slot | None:
        """Return the draft to fill for an offered version, or None if the version is not needed.

        A draft that was started before is resumed. The predecessor is the only source, so a version older than the
        draft is accepted if it is newer than the complete one. Raises VersionOrder if its number was used for other
        content, and SegmentFull.
        """
        version = manifest.version
        for held in (self.complete, self._draft):
            if held is not None and held.manifest.version == version and held.manifest != manifest:
                raise VersionOrder(
                    f"version {version} was offered before with other content; each version needs a new number"
                )
        if self.complete is not None and version <= self.complete.manifest.version:
            return None
        if self._draft is not None and self._draft.manifest.version == version:
            return self._draft
        return self.begin(manifest)

    def accept(self, draft: Slot, index: int, checksum: int) -> bool:
        """Mark a received chunk if its checksum is right, and wake waiting threads."""
        with self._changed:
            accepted = draft.accept(index, checksum)
            if accepted:
                self._note_progress()
            return accepted

    def commit(self, draft: Slot) -> bool:
        """Make the draft the complete version; return False if it was superseded. Raises IncompleteVersion."""
        with self._changed:
            if not self._writer.owns(draft):
                return False
            self._writer.commit(draft)
            self._draft = None
            self.counters.add(commits=1)
            self._note_progress()
            return True

    def on_offer(self) -> Slot | None:
        """Return the version to offer a successor: the one in transfer, or the complete one if that is stuck."""
        draft = self._draft
        if draft is not None and self._clock() - self._progress_at < self._patience:
            return draft
        return self.complete

    @contextmanager
    def holding(self, slot: Slot) -> Iterator[None]:
        """Keep the slot's content while it is read or filled."""
        with self._changed:
            slot.hold()
        try:
            yield
        finally:
            with self._changed:
                slot.release()

    def wait(self, until: Callable[[], bool], timeout: float) -> bool:
        """Wait until the condition holds, at most `timeout` seconds. It is checked after every change of the store."""
        with self._changed:
            return self._changed.wait_for(until, timeout)

    def wake(self) -> None:
        """Make all waiting threads check their conditions."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Remove the segment."""
        with self._changed:
            self._draft = None
            self._writer.close()
            self._changed.notify_all()

    def _note_progress(self) -> None:
        self._progress_at = self._clock()
        self._changed.notify_all()
