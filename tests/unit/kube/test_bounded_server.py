"""A server's connections are bounded: in all, for each host, and in the time without a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from rljob_kube.bounded_server import READ_BUFFER, BoundedServer, ConnectionLimits, serve

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ONE_READ = 256 << 10
"""Most bytes that asyncio reads from a socket at a time."""
STRANGER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[BoundedServer]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    async with serve(app, "127.0.0.1", 0, limits, shutdown_seconds=1.0) as server:
        yield server


async def connect(server: BoundedServer, host: str) -> Stream:
    return await asyncio.open_connection("127.0.0.1", server.port, local_addr=(host, 0))


async def is_ended(stream: Stream) -> bool:
    """Wait until the server ends a connection; False if it sends something. Raises `TimeoutError`."""
    with suppress(ConnectionError):
        async with asyncio.timeout(20.0):
            return await stream[0].read(1) == b""
    return True


async def is_served(stream: Stream) -> bool:
    """Say whether the server answers a request on a connection, or has ended it."""
    try:
        stream[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        return (await stream[0].readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def said(server: BoundedServer) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/") as answer:
        return await answer.text()


async def test_one_host_has_so_many_connections_and_keeps_no_other_out() -> None:
    async with serving(ConnectionLimits(total=100, of_a_host=3)) as server:
        kept = [await connect(server, STRANGER) for _ in range(3)]
        assert await is_served(kept[-1])
        assert await is_ended(await connect(server, STRANGER))
        assert server.stats.connections_refused == 1
        assert await said(server) == "hello"
        kept.pop()[1].close()
        async with asyncio.timeout(30):
            while not await is_served(again := await connect(server, STRANGER)):
                pass
        for _, writer in (*kept, again):
            writer.close()


async def test_all_hosts_together_have_so_many() -> None:
    async with serving(ConnectionLimits(total=4, of_a_host=3)) as server:
        kept = [await connect(server, host) for host in (STRANGER, STRANGER, NEIGHBOUR, NEIGHBOUR)]
        assert await is_served(kept[-1])
        assert await is_ended(await connect(server, NEIGHBOUR))
        with pytest.raises(aiohttp.ClientError):
            await said(server)
        for _, writer in kept:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
async def test_who_completes_no_request_is_ended(sent: bytes) -> None:
    async with serving(ConnectionLimits(idle_seconds=0.3)) as server:
        stream = await connect(server, STRANGER)
        stream[1].write(sent)
        assert await is_ended(stream)


async def test_one_connection_serves_several_requests() -> None:
    async with serving(ConnectionLimits(of_a_host=1)) as server:
        stream = await connect(server, STRANGER)
        for _ in range(3):
            assert await is_served(stream)
        stream[1].close()


async def test_little_of_a_body_is_read_before_its_handler_reads_it() -> None:
    """A request may wait long, and thousands of them do."""
    arrived: list[int] = []
    length = 8 << 20

    async def late(request: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        arrived.append(request.content.total_bytes)
        return web.Response(text=str(len(await request.read())))

    app = web.Application(client_max_size=length)
    app.router.add_post("/", late)
    async with serve(app, "127.0.0.1", 0, ConnectionLimits(), shutdown_seconds=1.0) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with aiohttp.ClientSession() as session, session.post(url, data=b"x" * length) as answer:
            assert await answer.text() == str(length)
    assert arrived[0] <= 2 * READ_BUFFER + ONE_READ
