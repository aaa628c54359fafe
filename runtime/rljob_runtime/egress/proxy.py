"""Proxy: connects runners with the hosts that their environments name.

It resolves names itself and connects to the address that the rules allow: a second look at the name could give another
one. Everything of a client is bounded: its connections before and after they show a key, the head of a request, the
lookups of names, and the time for each step. What passes through a tunnel is not read, and little of it is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rljob_api.keys.proxy_key import verify_proxy_key
from rljob_api.keys.signed_text import KeyRefused
from rljob_runtime.egress.requests import BadRequest, ProxyRequest, parse_request
from rljob_runtime.egress.rules import Address, Rules, allowed

log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

_CHUNK = 32_768
_HELD = 32_768
"""Bytes that a tunnel holds in each direction until the receiver takes them, besides what one read brings."""
_LOG_SECONDS = 1.0
"""Shortest time between two log lines about refused requests."""
_REASONS = {400: "Bad Request", 403: "Forbidden", 407: "Proxy Authentication Required", 502: "Bad Gateway"}
_REASONS |= {503: "Service Unavailable", 504: "Gateway Timeout"}


@dataclass(frozen=True)
class ProxyLimits:
    """Bounds of connections."""

    connections: int = 512
    of_an_environment: int = 256
    asking: int = 512
    """Connections without a complete head. For a further one the oldest ends of the address that has most of them."""
    lookups_of_an_environment: int = 8
    """Names that are looked up at a time. A name server may be slow for ever, and there are few threads for it."""
    head_bytes: int = 16_384
    head_seconds: float = 10.0
    """Longest time until the head of a request is complete."""
    resolve_seconds: float = 5.0
    connect_seconds: float = 10.0
    idle_seconds: float = 300.0
    """Longest time in which nothing passes in a direction that still has something to send."""


@dataclass
class ProxyStats:
    """Totals of a proxy."""

    opened: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """Refused requests by status."""


class Refused(Exception):
    """A request that gets a status in place of a connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EgressProxy:
    """One job's proxy. `key`: that of the proxy keys."""

    def __init__(self, rules: Rules, key: bytes, limits: ProxyLimits, resolve: Resolve) -> None:
        self.stats = ProxyStats()
        self._rules = rules
        self._key = key
        self._limits = limits
        self._resolve = resolve
        self._by_environment: Counter[str] = Counter()
        self._lookups: Counter[str] = Counter()
        self._asking: dict[str, dict[asyncio.Task[None], None]] = {}
        """Connections without a complete head, by address, the oldest first."""
        self._logged = 0.0

    @contextlib.asynccontextmanager
    async def serve(self, host: str | None, port: int, end_seconds: float) -> AsyncIterator[int]:
        """Accept clients while the context is open; give the port. Connections then have `end_seconds` to end."""
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve_one(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, host, port, limit=self._limits.head_bytes)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            if tasks:
                await asyncio.wait(tasks, timeout=end_seconds)
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client's connection: one request, and what passes after it."""
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or sends nothing more
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = "a request"
        try:
            try:
                with self._asks(writer.get_extra_info("peername")[0]):
                    async with asyncio.timeout(self._limits.head_seconds):
                        request = parse_request(await reader.readuntil(b"\r\n\r\n"))
            except (BadRequest, asyncio.LimitOverrunError) as error:
                raise Refused(400, str(error)) from error
            environment = self._environment(request)
            asked = f"{environment}: {request.host[:253]!r} port {request.port}"
            async with self._place(environment):
                server = await self._connect(environment, request)
                await self._pass_on(request, (reader, writer), server)
        except Refused as refused:
            self._note(refused, asked)
            async with asyncio.timeout(self._limits.head_seconds):
                writer.write(_answer(refused))
                await writer.drain()

    @contextlib.contextmanager
    def _asks(self, address: str) -> Iterator[None]:
        """Count this connection among those without a complete head; end another one if there are too many."""
        task = asyncio.current_task()
        assert task is not None
        self._asking.setdefault(address, {})[task] = None
        if sum(map(len, self._asking.values())) > self._limits.asking:
            largest = max(self._asking, key=lambda one: len(self._asking[one]))
            self._asking[largest].pop(oldest := next(iter(self._asking[largest])))
            oldest.cancel()
        try:
            yield
        finally:
            mine = self._asking.get(address, {})
            mine.pop(task, None)
            if not mine:
                self._asking.pop(address, None)

    def _environment(self, request: ProxyRequest) -> str:
        try:
            return verify_proxy_key(self._key, request.key)
        except KeyRefused as error:
            raise Refused(407, "the request has no proxy key of this job") from error

    @contextlib.asynccontextmanager
    async def _place(self, environment: str) -> AsyncIterator[None]:
        if self._by_environment[environment] >= self._limits.of_an_environment:
            raise Refused(503, f"environment {environment} has {self._limits.of_an_environment} connections")
        if self._by_environment.total() >= self._limits.connections:
            raise Refused(503, f"the job has {self._limits.connections} connections")
        self._by_environment[environment] += 1
        try:
            yield
        finally:
            self._by_environment[environment] -= 1

    async def _connect(
        self, environment: str, request: ProxyRequest
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address of a host that answers. Raises `Refused`."""
        host, port = request.host, request.port
        match = self._rules.match(environment, host, port)
        if match is None:
            advice = "name it in egress.hosts of the environment"
            raise Refused(403, f"environment {environment} does not name {host[:253]!r} port {port}: {advice}")
        try:
            async with asyncio.timeout(self._limits.resolve_seconds):
                addresses = await self._looked_up(environment, host, port)
        except (OSError, TimeoutError, UnicodeError) as error:  # UnicodeError: a label of more than 63 characters
            raise Refused(502, f"{host!r} has no address: {error or 'no answer in time'}") from error
        usable = allowed(match, addresses)
        if not usable:
            raise Refused(403, f"no address of {host!r} is open to environments: {', '.join(map(str, addresses[:4]))}")
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                return await _first_answer(usable, port)
        except TimeoutError as error:
            raise Refused(504, f"{host!r} port {port} did not accept the connection in time") from error
        except OSError as error:
            raise Refused(502, f"{host!r} port {port}: {error}") from error

    async def _looked_up(self, environment: str, host: str, port: int) -> Sequence[Address]:
        """Return a host's addresses. A lookup that no client waits for still has its thread, and counts."""
        if self._lookups[environment] >= self._limits.lookups_of_an_environment:
            raise Refused(503, f"environment {environment} looks up {self._lookups[environment]} names")
        self._lookups[environment] += 1
        lookup = asyncio.ensure_future(self._resolve(host, port))

        def ended(done: asyncio.Future[Sequence[Address]]) -> None:
            self._lookups[environment] -= 1
            if not done.cancelled():
                done.exception()  # its caller may have gone

        lookup.add_done_callback(ended)
        return await asyncio.shield(lookup)

    async def _pass_on(
        self,
        request: ProxyRequest,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass bytes in both directions until both have ended, or nothing passes for too long."""
        self.stats.opened += 1
        for _, writer in (client, server):
            writer.transport.set_write_buffer_limits(_HELD)
        try:
            if request.tunnel:
                client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server[1].write(request.forwarded)
            active = [time.monotonic()]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(client[0], server[1], active))
                group.create_task(self._copy(server[0], client[1], active))
        except* OSError:
            pass
        finally:
            server[1].transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, active: list[float]) -> None:
        """Copy until the reader's end. `active`: when something passed last, in either direction."""
        idle = self._limits.idle_seconds
        while True:
            data = await self._read(reader, active)
            active[0] = time.monotonic()
            async with asyncio.timeout(idle):
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

    async def _read(self, reader: asyncio.StreamReader, active: list[float]) -> bytes:
        """Read what comes next, as long as the other direction is active."""
        idle = self._limits.idle_seconds
        read = asyncio.ensure_future(reader.read(_CHUNK))
        try:
            while not (await asyncio.wait((read,), timeout=idle))[0]:
                if time.monotonic() - active[0] >= idle:
                    raise TimeoutError("nothing passes")
            return read.result()
        finally:
            read.cancel()

    def _note(self, refused: Refused, asked: str) -> None:
        self.stats.refused[refused.status] += 1
        if time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            log.info("%s is refused (%d): %s", asked, refused.status, refused)


async def _first_answer(addresses: Sequence[Address], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of these addresses that accepts. Raises the last one's `OSError`."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(str(address), port, limit=_HELD)
    return await asyncio.open_connection(str(addresses[-1]), port, limit=_HELD)


def _answer(refused: Refused) -> bytes:
    body = f"{refused}\n".encode("ascii", "replace")
    lines = [
        f"HTTP/1.1 {refused.status} {_REASONS[refused.status]}",
        "Content-Type: text/plain",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(['Proxy-Authenticate: Basic realm="rljob"'] if refused.status == 407 else []),
    ]
    return "\r\n".join((*lines, "", "")).encode() + body


def resolver(threads: int) -> Resolve:
    """Return a resolver by the pod's own DNS settings. Slow lookups take these threads, and no other ones."""
    pool = ThreadPoolExecutor(threads, "resolve")

    def look_up(host: str, port: int) -> list[Address]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        texts = dict.fromkeys(str(one[4][0]).partition("%")[0] for one in found)
        return [ipaddress.ip_address(text) for text in texts]

    async def resolve(host: str, port: int) -> Sequence[Address]:
        return await asyncio.get_running_loop().run_in_executor(pool, look_up, host, port)

    return resolve
