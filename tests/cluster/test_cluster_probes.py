"""One attempt of each kind of probe, against servers of this process."""

import asyncio
import os

import pytest
from hack.cluster import probes

ENV = dict(os.environ)


async def answer(status, reader, writer):
    await reader.readline()
    writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    writer.close()


async def hang(reader, writer):
    await reader.read()


@pytest.mark.parametrize(("status", "expected"), [(200, True), (302, True), (404, False), (503, False)])
async def test_http(status, expected):
    async def handler(reader, writer):
        await answer(status, reader, writer)

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        container = {"ports": [{"name": "health", "containerPort": port}]}
        probe = {"httpGet": {"port": "health", "path": "/readyz"}, "timeoutSeconds": 30}
        assert await probes.check(probe, container, "127.0.0.1", ENV) is expected
        assert await probes.check({"tcpSocket": {"port": port}, "timeoutSeconds": 30}, {}, "127.0.0.1", ENV)
    assert not await probes.check(probe, container, "127.0.0.1", ENV), "nobody listens any more"


async def test_http_that_hangs_is_a_failure():
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        probe = {"httpGet": {"port": port}, "timeoutSeconds": 0.2}
        assert not await probes.check(probe, {}, "127.0.0.1", ENV)


@pytest.mark.parametrize(
    ("command", "expected"),
    [(["true"], True), (["false"], False), (["no-such-command"], False), (["sleep", "60"], False)],
)
async def test_exec(command, expected):
    seconds = 30 if command[0] != "sleep" else 0.2
    assert await probes.check({"exec": {"command": command}, "timeoutSeconds": seconds}, {}, "", ENV) is expected


@pytest.mark.parametrize("probe", [{"grpc": {"port": 1}}, {"tcpSocket": {"port": "unnamed"}}])
async def test_what_is_not_supported_fails(probe):
    assert not await probes.check(probe, {}, "127.0.0.1", ENV)
