"""Gradient sums on their way from loaned machines to the trainer: the relay's transport, with the trainer at its end.

A contribution is one version of a segment of its own: chunks with checksums, resumed after a broken connection,
authenticated by the job's key, and committed whole or not at all. An inbox is a relay that nobody succeeds. Every
delivery is a chain of one member whose number is the contribution's; an inbox's name has the step in it, so what is
delivered late, by a worker or a coordinator that was replaced, is refused (`fencing`, `wire.Identity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rljob_runtime.protocols import Chain, Refused, RelayMember
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import NoVersion, Segment, SegmentWriter
from rljob_runtime.relay.sender import LinkPhase
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import SegmentError
from rljob_runtime.relay.tensors import torch_dtype, views


class GradientInboxes:
    """Where contributions come in, each at its own inbox; of no use to anybody before they are open."""

    def __init__(self, folder: Path, key: bytes, settings: RelaySettings, host: str, incarnation: int = 0) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._make = lambda name, folder: Relay(name, incarnation, folder, key, settings, host)
        self._relays: list[Relay] = []

    def open(self, step: int, count: int) -> tuple[RelayMember, ...]:
        """Where they listen for contributions 1 to `count` to this step, from now until `close`; those before are
        closed. Raises `Refused` when they cannot."""
        self.close()
        try:
            for number in range(1, count + 1):
                self._relays.append(self._make(f"inbox-{step}-{number}", self._of(number)))
        except (OSError, SegmentError) as error:
            self.close()
            raise Refused(f"no inboxes for {count} contributions: {error}") from error
        return tuple(RelayMember(relay.machine, self._incarnation, *relay.address) for relay in self._relays)

    @property
    def bytes_received(self) -> int:
        """By the open inboxes."""
        return sum(relay.counters.bytes_received for relay in self._relays)

    def read(self, number: int) -> dict[str, torch.Tensor]:
        """The tensors of a contribution that lies here whole, sharing the memory it came in. Raises `Refused` when
        another one does, or none."""
        try:
            manifest, buffer = Segment.open(self._of(number)).current()
        except NoVersion as error:
            raise Refused(f"contribution {number} is expected; its inbox holds none") from error
        if manifest.version != number:
            raise Refused(f"contribution {number} is expected; its inbox holds {manifest.version}")
        return dict(views(manifest, buffer))

    def close(self) -> None:
        """Stop listening and give the memory back. Idempotent."""
        for relay in self._relays:
            relay.close()
        self._relays = []

    def _of(self, number: int) -> Path:
        return self._folder.with_name(f"{self._folder.name}-{number}")


GIVEN_UP = (LinkPhase.LOST, LinkPhase.REFUSED)
"""A link in one of these tries no more by itself."""


@dataclass(frozen=True)
class GradientSenderSettings:
    """`folder`: of the segment that a delivery makes and removes. `dtype`: torch's name of what sums are in. `seconds`
    bounds a delivery."""

    folder: Path
    key: bytes = field(repr=False)
    relay: RelaySettings
    dtype: str
    seconds: float
    incarnation: int = 0


class GradientSender:
    """Brings contributions from a loaned machine to the trainer."""

    def __init__(self, settings: GradientSenderSettings) -> None:
        self._settings = settings

    def deliver(self, term: int, number: int, tensors: Mapping[str, torch.Tensor], inbox: RelayMember) -> int:
        """Bring `tensors` to the inbox as `number`; their bytes, when they lie there whole. To make sharded ones whole
        is a collective. Raises `Refused`, at once when the inbox is lost or refuses."""
        own = self._settings
        try:
            # One for each delivery: its memory is as large as a gradient.
            with Publisher(own.folder, own.key, own.relay, torch_dtype(own.dtype), own.incarnation) as publisher:
                nbytes = publisher.publish(number, tensors).nbytes
                publisher.settle()
                publisher.ship(term, Chain(number, 0, (inbox,)))
                if not publisher.wait_delivered(number, own.seconds, unless=lambda: publisher.link[0] in GIVEN_UP):
                    where, link = f"{inbox.host}:{inbox.port}", " ".join(publisher.link)
                    raise Refused(f"contribution {number} did not reach {where}: {link}")
                return nbytes
        except (OSError, SegmentError) as error:
            raise Refused(f"the sums cannot be sent: {error}") from error


def discard(folder: Path) -> None:
    """Give back the memory of a sender whose process was ended in the middle of a delivery. Raises `SegmentBusy` while
    it lives."""
    if folder.exists():
        SegmentWriter.open(folder).close()
