"""The bytes that the gateway holds are bounded, whatever agents send, and each agent has its share."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest

from rljob_kube.bounded_server import ConnectionLimits, ConnectionStats
from rljob_runtime.gateway.answers import Answer
from rljob_runtime.gateway.capability import Capability, gateway_key, mint
from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.gateway import Gateway
from rljob_runtime.gateway.memory import Memory
from rljob_runtime.gateway.server import ServerSettings, serve
from rljob_runtime.gateway.wire.fields import MOST_VALUES, parse_body
from tests.support.gateway.site import SETTINGS, Site, make_site, user
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.waiting import until

KEY = gateway_key(b"secret")
OTHER = attempt_of(1)
ANSWER = 24 << 20
BOUNDS = ServerSettings(most_bytes=20_000, held_bytes=80_000, requests_of_attempt=6, read_seconds=20.0)


def key(index: int = 0) -> str:
    return mint(KEY, Capability(attempt_of(index), 1_000))


@dataclass
class Served:
    """A gateway that listens on loopback, with its memory."""

    site: Site
    memory: Memory
    url: str
    session: aiohttp.ClientSession

    async def ask(self, words: int, index: int = 0, **headers: str) -> int:
        """Ask for a turn with a body of a thousand bytes a word; return the status."""
        body = json.dumps({"messages": [user("hi")], "metadata": {"a": "x" * 1000 * words}}).encode()
        return await self.send(gzip.compress(body) if headers else body, index, **headers)

    async def send(self, body: bytes, index: int = 0, **headers: str) -> int:
        more = {"Authorization": f"Bearer {key(index)}", **headers}
        async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=more) as got:
            await got.read()
            return got.status


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        site, memory = make_site(), BOUNDS.memory()
        stack.callback(site.executor.shutdown)
        site.coordinator.start(OTHER)
        port = await stack.enter_async_context(
            serve(site.gateway, KEY, lambda: 0.0, "127.0.0.1", 0, BOUNDS, memory=memory)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(site, memory, f"http://127.0.0.1:{port}", session)


async def test_bodies_of_one_attempt_wait_for_its_share_and_others_do_not(served: Served) -> None:
    served.site.coordinator.weights.clear()
    asking = [asyncio.create_task(served.ask(12)) for _ in range(3)]
    await until(lambda: served.memory.stats.memory_waits == 2)
    await until(lambda: len(served.site.coordinator.calls) == 1)
    assert 12_000 < served.memory.held < 20_000, "one body has the share of its attempt"
    other = asyncio.create_task(served.ask(12, 1))
    await until(lambda: len(served.site.coordinator.calls) == 2)
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking, other) == [200] * 4
    assert (served.memory.held, served.memory.stats.memory_refused) == (0, 0)


async def test_an_attempt_has_so_many_requests_and_the_rest_may_be_sent_again(served: Served) -> None:
    served.site.coordinator.weights.clear()
    asking = [asyncio.create_task(served.ask(1)) for _ in range(6)]
    await until(lambda: len(served.site.coordinator.calls) == 6)
    assert await served.ask(1) == 429
    assert served.memory.stats.memory_refused == 1
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking) == [200] * 6


@pytest.mark.parametrize("words", [1, 18])
async def test_an_encoded_body_counts_as_what_it_may_become(served: Served, words: int) -> None:
    held: list[int] = []
    served.site.coordinator.weights.clear()
    asking = asyncio.create_task(served.ask(words, **{"Content-Encoding": "gzip"}))
    await until(lambda: len(served.site.coordinator.calls) == 1)
    held.append(served.memory.held)
    served.site.coordinator.weights.set()
    assert await asking == 200
    assert words * 1000 < held[0] < words * 1000 + 200


async def test_a_body_that_is_longer_than_it_announces_is_refused(served: Served) -> None:
    assert await served.ask(40, **{"Content-Encoding": "gzip"}) == 413
    assert served.memory.held == 0


async def test_a_client_that_leaves_is_no_failure_and_holds_nothing(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.site.coordinator.weights.clear()
    leaving = asyncio.create_task(served.ask(1))
    await until(lambda: len(served.site.coordinator.calls) == 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.sleep(0.1)
    served.site.coordinator.weights.set()
    await until(lambda: served.memory.held == 0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    assert await served.ask(1) == 200


class LongAnswers(Gateway):
    """A gateway whose answers no socket's buffers take."""

    async def chat(self, capability: Capability, body: bytes, retry: bool | None = None) -> Answer:
        return Answer(b"x" * ANSWER)


async def test_an_answer_that_no_client_reads_is_counted_until_its_time_is_over() -> None:
    bounds = ServerSettings(write_seconds=0.3)
    async with AsyncExitStack() as stack:
        site, memory = make_site(), bounds.memory()
        stack.callback(site.executor.shutdown)
        gateway = LongAnswers(site.coordinator, site.text, SETTINGS, site.executor, lambda: 0.0)
        port = await stack.enter_async_context(serve(gateway, KEY, lambda: 0.0, "127.0.0.1", 0, bounds, memory=memory))
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nAuthorization: Bearer {key()}"
        writer.write(f"{head}\r\n\r\n{{}}".encode())
        await until(lambda: memory.held == ANSWER + 2)
        await until(lambda: memory.held == 0)
        writer.close()


def test_a_body_of_millions_of_values_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(GatewayError, match="values"):
        parse_body(b'{"a": [' + b"[]," * (MOST_VALUES // 2) + b"[]]}")


async def test_connections_beyond_the_bound_are_refused_and_counted() -> None:
    bounds, refused = ServerSettings(connections=ConnectionLimits(of_a_host=2)), ConnectionStats()
    async with serve(make_site().gateway, KEY, lambda: 0.0, "127.0.0.1", 0, bounds, connections=refused) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(3)]
        await until(lambda: refused.connections_refused == 1)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        for _, writer in opened:
            writer.close()
