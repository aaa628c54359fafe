"""Gradient sums on their way from a lent machine to the trainer: the relay's transport, with the trainer at its end.

A contribution is one version of a segment of its own: chunks with checksums, resumed after a broken connection,
authenticated by the job's key, and committed whole or not at all. The desk is a relay that nobody succeeds. Every
delivery is a chain of one member whose number is the contribution's, so what is delivered late, by a worker or a
coordinator that was replaced, is refused (`fence`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from rljob_runtime.coordinator.protocols import Chain, Refused, RelayMember
from rljob_runtime.relay.push import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import NoVersion, Segment
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import SegmentError
from rljob_runtime.relay.tensors import views

DESK = "desk"


class Desk:
    """Where contributions come in, one after the other, in rising numbers; of no use to anybody before it is open."""

    def __init__(self, folder: Path, key: bytes, settings: RelaySettings, host: str, incarnation: int = 0) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._make = lambda: Relay(DESK, incarnation, folder, key, settings, host)
        self._relay: Relay | None = None

    def open(self) -> RelayMember:
        """Where it listens, from now until `close`. Raises `Refused` when it cannot."""
        if self._relay is None:
            try:
                self._relay = self._make()
            except (OSError, SegmentError) as error:
                raise Refused(f"no desk for contributions: {error}") from error
        host, port = self._relay.address
        return RelayMember(DESK, self._incarnation, host, port)

    @property
    def bytes_received(self) -> int:
        """By the open desk."""
        return self._relay.counters.bytes_received if self._relay is not None else 0

    def read(self, number: int) -> dict[str, torch.Tensor]:
        """The tensors of a contribution that lies here whole, sharing the memory it came in. Raises `Refused` when
        another one does, or none."""
        try:
            manifest, buffer = Segment.open(self._folder).current()
        except NoVersion as error:
            raise Refused(f"contribution {number} is expected; the desk holds none") from error
        if manifest.version != number:
            raise Refused(f"contribution {number} is expected; the desk holds {manifest.version}")
        return dict(views(manifest, buffer))

    def close(self) -> None:
        """Stop listening and give the memory back. Idempotent."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


class Courier:
    """Brings contributions from a lent machine to the desk. `seconds` bounds a delivery."""

    def __init__(
        self,
        folder: Path,
        key: bytes,
        settings: RelaySettings,
        dtype: torch.dtype,
        seconds: float,
        incarnation: int = 0,
    ) -> None:
        self._seconds = seconds
        self._make = lambda: Publisher(folder, key, settings, dtype, incarnation)

    def deliver(self, term: int, number: int, tensors: Mapping[str, torch.Tensor], desk: RelayMember) -> int:
        """Bring `tensors` to the desk as `number`; their bytes, when they lie there whole. Raises `Refused`."""
        with self._publisher() as publisher:
            nbytes = publisher.publish(number, tensors).nbytes
            publisher.settle()
            publisher.ship(term, Chain(number, 0, (desk,)))
            if not publisher.wait_delivered(number, self._seconds):
                where, link = f"{desk.host}:{desk.port}", " ".join(publisher.link)
                raise Refused(f"contribution {number} did not reach {where} in {self._seconds:g} s: {link}")
            return nbytes

    @contextmanager
    def _publisher(self) -> Iterator[Publisher]:
        """One for each delivery: its memory is as large as a gradient."""
        try:
            with self._make() as publisher:
                yield publisher
        except (OSError, SegmentError) as error:
            raise Refused(f"the sums cannot be sent: {error}") from error
