"""The egress proxy on real connections: who gets one, and with what."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest

from rljob_api.keys.proxy_key import mint_proxy_key
from rljob_api.keys.runner_key import mint_runner_key
from rljob_runtime.egress import proxy as module
from rljob_runtime.egress.proxy import EgressProxy, ProxyLimits
from rljob_runtime.egress.requests import BadRequest, parse_request
from rljob_runtime.egress.rules import Address, Rules

KEY = b"k" * 32
CALC = mint_proxy_key(KEY, "calc")
LIMITS = ProxyLimits(
    connections=4,
    of_an_environment=2,
    head_bytes=2048,
    head_seconds=0.5,
    resolve_seconds=0.5,
    connect_seconds=1.0,
    idle_seconds=0.5,
)


@dataclass
class Site:
    """A server behind a proxy. `heads`: what the server received."""

    proxy: EgressProxy
    proxy_port: int
    port: int
    heads: list[bytes]

    async def ask(self, first: str, key: str = CALC, more: bytes = b"", headers: str = "") -> bytes:
        """Send one request; return all that comes back until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy_port)
        basic = base64.b64encode(f"calc:{key}".encode()).decode()
        own = f"Proxy-Authorization: Basic {basic}\r\n" if key else ""
        writer.write(f"{first} HTTP/1.1\r\n{own}{headers}\r\n".encode() + more)
        async with asyncio.timeout(60.0):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
        writer.close()
        return answer

    def connect(self, host: str = "site.test") -> str:
        return f"CONNECT {host}:{self.port}"


@asynccontextmanager
async def site(monkeypatch: pytest.MonkeyPatch, limits: ProxyLimits = LIMITS) -> AsyncIterator[Site]:
    """A server at a public address, as far as the proxy knows: the connection goes to this machine."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    names = {
        "site.test": "93.184.216.34",
        "inside.test": "10.0.0.1",
        "a.many.test": "10.0.0.1",
        "cloud.test": "169.254.169.254",
    }

    async def resolve(host: str, port: int) -> Sequence[Address]:
        if host not in names:
            raise OSError("no such name")
        return [ipaddress.ip_address(names[host])]

    async def connect(addresses: Sequence[Address], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port)

    monkeypatch.setattr(module, "_first_answer", connect)
    hosts = [f"{name}:{port}" for name in ("site.test", "*.many.test", "inside.test", "cloud.test", "gone.test")]
    proxy = EgressProxy(Rules.parse({"calc": hosts, "shell": []}), KEY, limits, resolve)
    try:
        async with proxy.serve("127.0.0.1", 0, 1.0) as proxy_port:
            yield Site(proxy, proxy_port, port, heads)
    finally:
        server.close()


async def test_a_tunnel_carries_what_the_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        answer = await one.ask(one.connect(), more=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert one.heads == [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
    assert one.proxy.stats.opened == 1


async def test_a_page_is_asked_for_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        url = f"http://site.test:{one.port}/a?b=c"
        answer = await one.ask(f"GET {url}", headers="Accept: x\r\nHost: other\r\nConnection: keep-alive\r\n")
        assert answer.endswith(b"hello")
        (head,) = one.heads
        lines = head.decode().split("\r\n")
        assert lines[0] == "GET /a?b=c HTTP/1.1"
        assert set(lines[1:-2]) == {f"Host: site.test:{one.port}", "Connection: close", "Accept: x"}


async def test_the_runners_http_client_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        monkeypatch.setenv("HTTP_PROXY", f"http://calc:{CALC}@127.0.0.1:{one.proxy_port}")
        monkeypatch.setenv("NO_PROXY", "localhost")
        async with httpx.AsyncClient(trust_env=True) as client:
            assert (await client.get(f"http://site.test:{one.port}/")).text == "hello"
            assert (await client.get(f"http://other.test:{one.port}/")).status_code == 403


@pytest.mark.parametrize("key", ["", "x", mint_proxy_key(b"other" * 8, "calc"), mint_runner_key(KEY, "calc")])
async def test_a_stranger_gets_no_connection(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    async with site(monkeypatch) as one:
        answer = await one.ask(one.connect(), key)
        assert answer.startswith(b"HTTP/1.1 407 ")
        assert b"Proxy-Authenticate: Basic" in answer
        assert one.proxy.stats.opened == 0


@pytest.mark.parametrize(
    ("host", "status", "words"),
    [
        ("other.test", 403, b"name it in egress.hosts"),
        ("127.0.0.1", 403, b"name it in egress.hosts"),
        ("a.many.test", 403, b"no address of 'a.many.test' is open"),
        ("cloud.test", 403, b"no address of 'cloud.test' is open"),
        ("gone.test", 502, b"has no address"),
        ("inside.test", 200, b"established"),
    ],
)
async def test_hosts_that_are_refused(monkeypatch: pytest.MonkeyPatch, host: str, status: int, words: bytes) -> None:
    async with site(monkeypatch) as one:
        answer = await one.ask(one.connect(host), more=b"x\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert words in answer


async def test_an_environment_has_its_own_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        assert (await one.ask(one.connect(), mint_proxy_key(KEY, "shell"))).startswith(b"HTTP/1.1 403 ")


async def test_a_head_has_a_bound_in_bytes_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        assert (await one.ask(one.connect(), headers=f"A: {'a' * 4096}\r\n")).startswith(b"HTTP/1.1 400 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", one.proxy_port)
        async with asyncio.timeout(60.0):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(("of_all", "whose"), [(4, "environment calc has 2"), (2, "the job has 2")])
async def test_connections_have_a_bound(monkeypatch: pytest.MonkeyPatch, of_all: int, whose: str) -> None:
    own = 2 if of_all > 2 else 3
    limits = replace(LIMITS, head_seconds=5.0, idle_seconds=5.0, connections=of_all, of_an_environment=own)
    async with site(monkeypatch, limits) as one:
        held = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.proxy_port)
            basic = base64.b64encode(f"calc:{CALC}".encode()).decode()
            writer.write(f"{one.connect()} HTTP/1.1\r\nProxy-Authorization: Basic {basic}\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            held.append(writer)
        refused = await one.ask(one.connect())
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert whose.encode() in refused
        for writer in held:
            writer.close()


async def test_connections_that_ask_nothing_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no key. The oldest of the address that has most of them ends."""
    async with site(monkeypatch, replace(LIMITS, head_seconds=60.0, asking=6)) as one:
        other = ("127.0.0.2", 0)
        silent = [
            await asyncio.open_connection("127.0.0.1", one.proxy_port, local_addr=other if number % 5 else None)
            for number in range(20)
        ]
        answer = await one.ask(f"GET http://site.test:{one.port}/")
        assert answer.endswith(b"hello")
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        done, _ = await asyncio.wait(ended, timeout=1.0)
        left = [number for number, read in enumerate(ended) if read not in done]
        assert len(left) <= 6
        assert 15 in left, "of an address that has few of them"
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)


async def test_slow_name_servers_of_one_environment_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup has its thread until it ends, whether its client still waits or not."""
    async with site(monkeypatch, replace(LIMITS, resolve_seconds=0.1, lookups_of_an_environment=2)) as one:
        resolve, answers = one.proxy._resolve, asyncio.Event()

        async def slow(host: str, port: int) -> Sequence[Address]:
            await answers.wait()
            return await resolve(host, port)

        monkeypatch.setattr(one.proxy, "_resolve", slow)
        url = f"GET http://site.test:{one.port}/"
        for status in (b"502", b"502", b"503"):
            assert (await one.ask(url)).startswith(b"HTTP/1.1 " + status)
        answers.set()
        await asyncio.sleep(0.05)
        assert (await one.ask(url)).endswith(b"hello")


async def test_a_tunnel_in_which_nothing_passes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(monkeypatch) as one:
        assert (await one.ask(one.connect())).endswith(b"established\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://a/ HTTP/1.1\r\n\r\n",
        b"GET http://u:p@a/ HTTP/1.1\r\n\r\n",
        b"GET http://a:99999/ HTTP/1.1\r\n\r\n",
        b"CONNECT a HTTP/1.1\r\n\r\n",
        b"CONNECT a:0 HTTP/1.1\r\n\r\n",
        b"CONNECT a:443 HTTP/2\r\n\r\n",
        b"CONNECT a:443\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
        b"\xff\r\n\r\n",
    ],
)
def test_requests_that_no_proxy_answers(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(head)
