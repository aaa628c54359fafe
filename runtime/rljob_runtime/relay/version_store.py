"""What one process holds: the whole version and the one on its way, shared between the side that fills and the side
that sends."""

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
    unforeseen: int = 0
    """Connections that ended by an error that nobody foresaw; each is in the log with its traceback."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **amounts: int) -> None:
        """Raise the named counters."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)


class VersionStore:
    """Thread-safe. One thread at a time fills (`admit`, `accept`, `commit`); any number read and wait.

    `patience` is how long, in seconds, an unfinished version without progress is still thought to be on its way."""

    def __init__(self, writer: SegmentWriter, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters = Counters()
        self._writer = writer
        self._patience = patience
        self._clock = clock
        self._draft: Slot | None = None
        self._progress_at = clock()
        self._changed = threading.Condition()

    @property
    def whole(self) -> Slot | None:
        """The newest committed version."""
        return self._writer.current

    @property
    def draft(self) -> Slot | None:
        """The version on its way."""
        return self._draft

    def begin(self, manifest: Manifest) -> Slot:
        """Start a draft; one that was unfinished is given up. Raises SegmentFull (and nothing is on its way then)."""
        with self._changed:
            self._draft = None
            draft = self._writer.begin(manifest)
            # An unsealed one is being filled here: until `publish` it is nobody's business.
            self._draft = draft if manifest.sealed else None
            self._note_progress()
            return draft

    def admit(self, manifest: Manifest) -> Slot | None:
        """What to do with a version that is offered: the draft to fill (resumed when it was begun before), or None when
        nothing of it is wanted.

        The predecessor is the only source, so an older version than the draft is taken too when it is newer than the
        whole one. Raises VersionOrder when its number was used for other content, SegmentFull.
        """
        version = manifest.version
        for held in (self.whole, self._draft):
            if held is not None and held.manifest.version == version and held.manifest != manifest:
                raise VersionOrder(f"version {version} was offered before with other content: a number is used once")
        if self.whole is not None and version <= self.whole.manifest.version:
            return None
        if self._draft is not None and self._draft.manifest.version == version:
            return self._draft
        return self.begin(manifest)

    def accept(self, draft: Slot, index: int, checksum: int) -> bool:
        """Mark a received chunk when its checksum is right, and let those who wait for it know."""
        with self._changed:
            accepted = draft.accept(index, checksum)
            if accepted:
                self._note_progress()
            return accepted

    def commit(self, draft: Slot) -> bool:
        """Make the draft the whole version; False when it was superseded meanwhile. Raises IncompleteVersion."""
        with self._changed:
            if not self._writer.owns(draft):
                return False
            self._writer.commit(draft)
            self._draft = None
            self.counters.add(commits=1)
            self._note_progress()
            return True

    def on_offer(self) -> Slot | None:
        """What a successor should be given now: the version on its way, or the whole one when that is stuck."""
        draft = self._draft
        if draft is not None and self._clock() - self._progress_at < self._patience:
            return draft
        return self.whole

    @contextmanager
    def holding(self, slot: Slot) -> Iterator[None]:
        """Keep the slot's content while it is read from or filled."""
        with self._changed:
            slot.hold()
        try:
            yield
        finally:
            with self._changed:
                slot.release()

    def wait(self, until: Callable[[], bool], timeout: float) -> bool:
        """Wait until the condition holds (it is looked at after every change here), at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(until, timeout)

    def wake(self) -> None:
        """Let everyone who waits look again."""
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
