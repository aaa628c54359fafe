"""Publisher: copies the trainer's weights into its own segment and ships them while the next step trains.

Training only stops for the copy, one pass that casts to the published dtype and gathers. Checksums and sending happen
in the background from the trainer's segment. A new master therefore gets the same version without the trainer's
tensors.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from rljob_runtime.protocols import Chain, PublishReport, Refused, StaleTerm
from rljob_runtime.relay import tensors as flat
from rljob_runtime.relay.fencing import PUBLISHER, FencingToken
from rljob_runtime.relay.manifest import Manifest, checksum, layout
from rljob_runtime.relay.network.wire import Identity
from rljob_runtime.relay.segment import SegmentWriter, sweep_segments
from rljob_runtime.relay.sender import LinkPhase, Sender
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import Slot
from rljob_runtime.relay.version_store import Counters, VersionStore

log = logging.getLogger(__name__)

MAX_CHECKSUM_THREADS = 8


class Publisher:
    """Publishes versions from the trainer to the master relay, with its own segment in `folder`.

    `dtype` is the type to which floating-point tensors are rounded. Use as a context manager, or `close` it.
    """

    def __init__(
        self, folder: Path, key: bytes, settings: RelaySettings, dtype: torch.dtype, incarnation: int = 0
    ) -> None:
        self.dtype = dtype
        self._settings = settings
        self._token = FencingToken()
        self._lock = threading.Lock()
        sweep_segments(keep=folder)
        self._store = VersionStore(SegmentWriter.open(folder), patience=float("inf"))
        self._sender = Sender(self._store, Identity(PUBLISHER, incarnation), key, settings)
        self._sender.start()
        self._sealer = ThreadPoolExecutor(1, "publisher")
        self._sealing: Future[None] | None = None
        self._copied: Manifest | None = None
        self._layout: tuple[list[flat.Description], Manifest] | None = None

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> PublishReport:
        """Copy `tensors` (in this order) as `version` and return; the rest happens in the background.

        A version already published is not copied again. An unfinished earlier version is abandoned. Raises Refused for
        a version below a published one, SegmentFull, and any error of the background work since the last call.
        """
        if self._sealing is not None and self._sealing.done():
            self.settle()
        if self._copied is not None and version <= self._copied.version:
            if version < self._copied.version:
                raise Refused(
                    f"version {version} is below {self._copied.version}; a version must be higher than all before"
                )
            return PublishReport(version, self._copied.total_bytes, 0.0)
        began = time.perf_counter()
        plan = self._plan(version, flat.describe(tensors.items(), self.dtype))
        draft = self._store.begin(plan)
        flat.gather(tensors.items(), plan, draft.buffer())
        stall = time.perf_counter() - began
        self._copied = plan
        self._sealing = self._sealer.submit(self._seal, draft)
        return PublishReport(version, plan.total_bytes, stall)

    def ship(self, term: int, chain: Chain) -> None:
        """Feed the master of `chain` with the newest version, now and whenever there is a newer one.

        Shipping to the same chain again retries a lost master. Raises StaleTerm, Refused for an older chain, or
        `ServiceEnded` if the sender's thread has ended.
        """
        self._sender.check()
        with self._lock:
            token = FencingToken(term, chain.epoch, chain.revision)
            refusal = self._token.refusal(token)
            if refusal is not None:
                raise (StaleTerm if term < self._token.term else Refused)(f"the publisher: {refusal}")
            if not chain.members:
                raise Refused(f"chain {token.chain} has no members: there is no master to ship to")
            self._token = token
            self._sender.point(chain.members[0], token)

    def settle(self) -> None:
        """Wait until the version published last is checksummed and on offer.

        Raises the error of the background work, once; the version may then be published again.
        """
        sealing, self._sealing = self._sealing, None
        if sealing is None:
            return
        try:
            sealing.result()
        except Exception:
            self._copied = None
            raise

    def wait_delivered(self, version: int, timeout: float, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the master is known to hold `version`, or a newer one, completely; return whether it does.

        Returns False after `timeout` seconds or when `unless` holds. `unless` is checked when the link's phase changes
        and at every `wake`.
        """

        def delivered() -> bool:
            return (self._sender.delivered or -1) >= version

        self._store.wait(lambda: delivered() or unless(), timeout)
        return delivered()

    def wake(self) -> None:
        """Make waiting calls check their conditions again."""
        self._store.wake()

    @property
    def link(self) -> tuple[LinkPhase, str]:
        """Phase of the connection to the master, and the reason."""
        return self._sender.phase, self._sender.detail

    @property
    def counters(self) -> Counters:
        """Totals since the start."""
        return self._store.counters

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the newest version that is ready to be shipped."""
        complete = self._store.complete
        return complete.manifest if complete is not None else None

    def close(self) -> None:
        """End the background work and remove the segment."""
        self._sealer.shutdown(wait=True, cancel_futures=True)
        self._sender.close()
        self._store.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _plan(self, version: int, tensors: list[flat.Description]) -> Manifest:
        """Return the layout of `tensors`. It is computed once, because every version of a model has the same layout."""
        if self._layout is None or self._layout[0] != tensors:
            self._layout = (tensors, layout(version, tensors, self._settings.chunk_bytes))
        return self._layout[1].model_copy(update={"version": version})

    def _seal(self, draft: Slot) -> None:
        """Checksum the copied version and offer it, unless a newer version has replaced it."""
        manifest = draft.manifest
        with self._store.holding(draft), ThreadPoolExecutor(_checksum_threads(), "checksum") as pool:
            draft.seal(list(pool.map(lambda index: checksum(draft.chunk(index)), range(manifest.chunks))))
        if not self._store.commit(draft):
            log.info("version %d was superseded before it was sealed", manifest.version)


def _checksum_threads() -> int:
    return min(MAX_CHECKSUM_THREADS, os.cpu_count() or 1)
