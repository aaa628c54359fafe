"""Gradient transfer: gradient sums on their way from loaned machines to the trainer, over the relay's transport.

A contribution is one version of its own segment: chunks with checksums, resumed after a broken connection,
authenticated by the job's key, and committed completely or not at all. An inbox is a relay without a successor: each
delivery is a chain of length one whose number is the contribution's. An inbox's name contains the step, so late
deliveries of a replaced worker or coordinator are refused (`fencing`, `wire.Identity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rljob_runtime.protocols import Chain, Refused, RelayMember
from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import NoVersion, Segment, SegmentWriter
from rljob_runtime.relay.sender import LinkPhase
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import SegmentError
from rljob_runtime.relay.tensors import torch_dtype, views


class GradientInboxes:
    """Inboxes of the trainer, one for each contribution; closed until `open`."""

    def __init__(self, folder: Path, key: bytes, settings: RelaySettings, host: str, incarnation: int = 0) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._key, self._settings, self._host = key, settings, host
        self._relays: list[Relay] = []

    def open(self, step: int, count: int) -> tuple[RelayMember, ...]:
        """Listen for contributions 1 to `count` to this step until `close`, and return the inboxes' addresses.

        Earlier inboxes are closed. Raises `Refused` if the inboxes cannot be opened.
        """
        self.close()
        try:
            for number in range(1, count + 1):
                self._relays.append(self._inbox(step, number))
        except (OSError, SegmentError) as error:
            self.close()
            raise Refused(f"no inboxes for {count} contributions: {error}") from error
        return tuple(RelayMember(relay.machine, self._incarnation, *relay.address) for relay in self._relays)

    @property
    def bytes_received(self) -> int:
        """Bytes received by the open inboxes."""
        return sum(relay.counters.bytes_received for relay in self._relays)

    def read(self, number: int) -> dict[str, torch.Tensor]:
        """Return the tensors of a complete contribution, sharing the memory that received them.

        Raises `Refused` if its inbox holds another contribution or none.
        """
        try:
            manifest, buffer = Segment.open(self._of(number)).current()
        except NoVersion as error:
            raise Refused(f"contribution {number} is expected; its inbox holds none") from error
        if manifest.version != number:
            raise Refused(f"contribution {number} is expected; its inbox holds {manifest.version}")
        return dict(views(manifest, buffer))

    def close(self) -> None:
        """Stop listening and release the memory. Idempotent."""
        for relay in self._relays:
            relay.close()
        self._relays = []

    def _inbox(self, step: int, number: int) -> Relay:
        name, folder = f"inbox-{step}-{number}", self._of(number)
        return Relay(RelayConfig(name, self._incarnation, folder, self._key, self._settings, self._host))

    def _of(self, number: int) -> Path:
        return self._folder.with_name(f"{self._folder.name}-{number}")


GIVEN_UP = (LinkPhase.LOST, LinkPhase.REFUSED)
"""Phases in which a sender does not retry on its own."""


@dataclass(frozen=True)
class GradientSenderSettings:
    """Settings of deliveries.

    `folder` is the segment that a delivery makes and removes. `dtype` is torch's name of the sums' type. `seconds`
    bounds a delivery.
    """

    folder: Path
    key: bytes = field(repr=False)
    relay: RelaySettings
    dtype: str
    seconds: float
    incarnation: int = 0


class GradientSender:
    """Sends contributions from a loaned machine to the trainer."""

    def __init__(self, settings: GradientSenderSettings) -> None:
        self._settings = settings

    def deliver(self, term: int, number: int, tensors: Mapping[str, torch.Tensor], inbox: RelayMember) -> int:
        """Send `tensors` to the inbox as contribution `number`; return their bytes once they are complete there.

        Gathering sharded tensors is a collective. Raises `Refused`, immediately if the inbox is lost or refuses.
        """
        own = self._settings
        try:
            # A publisher for each delivery: its memory is as large as a gradient.
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
    """Release the memory of a sender whose process ended during a delivery.

    Raises `SegmentBusy` while the process lives.
    """
    if folder.exists():
        SegmentWriter.open(folder).close()
