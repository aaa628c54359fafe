"""Relay configuration: identity, address, key and timeouts of one relay."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rljob_runtime.relay.network.tcp import TCP
from rljob_runtime.relay.network.transport import Transport
from rljob_runtime.relay.network.wire import Identity
from rljob_runtime.relay.settings import RelaySettings


@dataclass(frozen=True)
class RelayConfig:
    """Configuration of the relay of `machine` in its `incarnation`.

    Its segment is in `folder`. It listens on (`host`, `port`); port 0 takes a free one.
    """

    machine: str
    incarnation: int
    folder: Path
    key: bytes = field(repr=False)
    settings: RelaySettings
    host: str
    port: int = 0
    transport: Transport = TCP

    @property
    def identity(self) -> Identity:
        """Identity in the handshake with neighbours."""
        return Identity(self.machine, self.incarnation)
