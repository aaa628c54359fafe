"""Strangers that hold connections to a pod's health port keep no other out, and cost few descriptors."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
from prometheus_client import CollectorRegistry

from rljob_kube.bounded_server import ConnectionLimits
from rljob_runtime.entrypoints.health import serve


async def test_a_stranger_has_few_connections_and_the_kubelet_is_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    allowed = ConnectionLimits().of_a_host
    async with serve("127.0.0.1", lambda: None, CollectorRegistry(), port):
        opened = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(allowed + 8)
        ]
        assert sum(await asyncio.gather(*(_is_served(*stream) for stream in opened))) == allowed
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        for _, writer in opened:
            writer.close()


async def _is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        return (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
