"""Bounded server: an HTTP server whose connections strangers cannot take all.

The ports of our pods are open to every pod of a cluster without network policies. A connection costs a file descriptor
while it is open, whether it sends a request or not, and a process without descriptors opens no file and no socket. So
the number of connections is bounded, for all hosts together and for each host. A connection that completes no request
in time is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web

log = logging.getLogger(__name__)

SHARE_OF_DESCRIPTORS = 0.5
"""Of the process's descriptors; the rest is for its own files and connections."""
READ_BUFFER = 1 << 16
"""Bytes of a body that are read ahead, twice at most: a request may wait long before its handler reads it."""
SWEEP = 64
LOG_SECONDS = 60.0
"""Time between two log lines about refused connections."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of a server's connections."""

    total: int = 256
    of_a_host: int = 32
    idle_seconds: float = 75.0
    """Longest time without a complete request."""


@dataclass
class ConnectionStats:
    """Totals of a server."""

    connections_refused: int = 0
    """Connections beyond the bounds."""


@dataclass(frozen=True)
class BoundedServer:
    """A server that answers. `port`: the one in use."""

    port: int
    stats: ConnectionStats


@contextlib.asynccontextmanager
async def serve(
    app: web.Application,
    host: str,
    port: int,
    limits: ConnectionLimits,
    shutdown_seconds: float = 60.0,
    stats: ConnectionStats | None = None,
) -> AsyncIterator[BoundedServer]:
    """Serve an application while the context is open. `port` 0: any free one. Raises `OSError`.

    `shutdown_seconds`: longest time in which open requests end. `stats`: where refusals are counted.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=shutdown_seconds,
        keepalive_timeout=limits.idle_seconds,
        read_bufsize=READ_BUFFER,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        places = _Places(cast(Callable[[], asyncio.Protocol], runner.server), limits, stats or ConnectionStats())
        server = await asyncio.get_running_loop().create_server(lambda: _Entrance(places), host, port)
        try:
            yield BoundedServer(server.sockets[0].getsockname()[1], places.stats)
        finally:
            server.close()
    finally:
        await runner.cleanup()


class _Places:
    """The connections of a server. `handler`: makes what serves one."""

    def __init__(
        self, handler: Callable[[], asyncio.Protocol], limits: ConnectionLimits, stats: ConnectionStats
    ) -> None:
        self.stats = stats
        self.handler = handler
        self._limits = limits
        self._total = min(limits.total, int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * SHARE_OF_DESCRIPTORS))
        self._open: dict[asyncio.Transport, str] = {}
        self._by_host: Counter[str] = Counter()
        self._sweep_at = SWEEP
        self._logged = -LOG_SECONDS

    def take(self, transport: asyncio.Transport) -> bool:
        """Return whether a connection has a place. Its end frees it."""
        host = str(transport.get_extra_info("peername", ("",))[0])
        if not self._has_room(host) or len(self._open) >= self._sweep_at:
            self._sweep()
        if self._has_room(host):
            self._open[transport] = host
            self._by_host[host] += 1
            return True
        self.stats.connections_refused += 1
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            log.warning(
                "a connection from %s is refused: the host has %d, all hosts have %d; at most %d and %d are allowed",
                *(host, self._by_host[host], len(self._open), self._limits.of_a_host, self._total),
            )
        return False

    def _has_room(self, host: str) -> bool:
        return len(self._open) < self._total and self._by_host[host] < self._limits.of_a_host

    def _sweep(self) -> None:
        """Forget connections that have ended. A look at each costs time, so it waits until it matters."""
        self._open = {one: where for one, where in self._open.items() if not one.is_closing()}
        self._by_host = Counter(self._open.values())
        self._sweep_at = 2 * len(self._open) + SWEEP


class _Entrance(asyncio.Protocol):
    """A new connection, before what serves it."""

    def __init__(self, places: _Places) -> None:
        self._places = places

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on, or end it."""
        stream = cast(asyncio.Transport, transport)
        if not self._places.take(stream):
            stream.abort()
            return
        handler = self._places.handler()
        stream.set_protocol(handler)
        handler.connection_made(stream)
