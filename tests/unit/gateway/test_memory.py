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

from rljob_api.gateway_bounds import GatewayBounds
from rljob_kube.bounded_server import ConnectionLimits, ConnectionStats
from rljob_runtime.gateway.answers import Answer
from rljob_runtime.gateway.capability import Capability, gateway_key, mint
from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.gateway import Gateway
from rljob_runtime.gateway.memory import Memory, Sender
from rljob_runtime.gateway.server import CONNECTIONS, ServerSettings, serve
from rljob_runtime.gateway.wire.fields import MOST_VALUES, parse_body
from rljob_runtime.protocols.turns import EpisodeAttempt, RequestNumber
from rljob_runtime.scheduling.byte_budget import ByteBudget
from tests.support.gateway.site import EPISODE, SETTINGS, Site, make_site, user
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.waiting import until

KEY = gateway_key(b"secret")
OTHER = attempt_of(1)
ANSWER = 24 << 20
BOUNDS = ServerSettings(most_bytes=20_000, held_bytes=80_000, requests_of_attempt=6, read_seconds=20.0, requests=7)
RETRY = {"x-stainless-retry-count": "1"}


def key(index: int = 0) -> str:
    return mint(KEY, Capability(attempt_of(index), 1_000))


def body_of(words: int, zipped: bool = False) -> bytes:
    body = json.dumps({"messages": [user("hi")], "metadata": {"a": "x" * 1000 * words}}).encode()
    return gzip.compress(body) if zipped else body


@dataclass
class Served:
    """A gateway that listens on loopback, with its memory."""

    site: Site
    memory: Memory
    url: str
    session: aiohttp.ClientSession

    async def ask(self, words: int, index: int = 0, **headers: str) -> int:
        """Ask for a turn with a body of a thousand bytes a word; return the status."""
        return (await self.send(body_of(words, zipped="Content-Encoding" in headers), index, **headers))[0]

    async def send(self, body: bytes, index: int = 0, **headers: str) -> tuple[int, str]:
        """Send a body; return the status and the answer."""
        more = {"Authorization": f"Bearer {key(index)}", **headers}
        async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=more) as got:
            return got.status, await got.text()

    def waiting(self, count: int) -> bool:
        """Tell whether so many requests have waited."""
        return self.memory.stats.memory_waits == count


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
    status, text = await served.send(body_of(1))
    assert status == 429
    assert "this attempt has 6 requests under way or waiting" in text
    assert "Its agent sends them concurrently" in text
    assert (served.memory.stats.memory_refused, served.memory.why_unserved(EPISODE)) == (1, None)
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking) == [200] * 6


async def filled(served: Served) -> list[asyncio.Task[int]]:
    """Take all places: seven of two attempts are under way."""
    served.site.coordinator.weights.clear()
    asking = [asyncio.create_task(served.ask(1, index)) for index in (0, 0, 0, 0, 1, 1, 1)]
    await until(lambda: len(served.site.coordinator.calls) == 7)
    return asking


async def take(memory: Memory, owner: EpisodeAttempt, sender: Sender) -> None:
    async with memory.room(owner, 1, 10.0, sender):
        pass


def start_more(served: Served) -> None:
    for index in range(2, 6):
        served.site.coordinator.start(attempt_of(index))


async def test_a_request_beyond_the_places_of_all_waits_and_is_answered(served: Served) -> None:
    start_more(served)
    asking = await filled(served)
    late = [asyncio.create_task(served.ask(1, index)) for index in (2, 3, 3)]
    await until(lambda: served.waiting(3))
    assert served.memory.why_unserved(attempt_of(3)), "its harness would end without an answer"
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking, *late) == [200] * 10
    assert served.memory.why_unserved(attempt_of(3)) is None
    assert (served.memory.stats.memory_refused, served.memory.stats.memory_full) == (0, 0)


async def test_more_requests_than_may_wait_are_refused_because_of_all(served: Served) -> None:
    start_more(served)
    asking = await filled(served)
    asking += [asyncio.create_task(served.ask(1, index)) for index in (2, 2, 2, 3, 3, 3, 4)]
    await until(lambda: served.waiting(7))
    status, text = await served.send(body_of(1), 5)
    assert (status, json.loads(text)["error"]["code"]) == (503, "gateway_full")
    assert "all episodes together take the gateway's 7 requests and 80000 bytes" in text
    assert served.memory.stats.memory_full == 1
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking) == [200] * 14
    assert served.memory.why_unserved(attempt_of(4)) is None
    why = served.memory.why_unserved(attempt_of(5))
    assert why == "the gateway had no place for 1 of its requests, because of those of other episodes"
    served.memory.forget(attempt_of(5))
    assert served.memory.why_unserved(attempt_of(5)) is None


@pytest.mark.parametrize(
    ("words", "headers", "served_then"),
    [(1, RETRY, True), (1, {}, False), (2, RETRY, False)],
    ids=["a retry", "a request of the same length", "a retry of another request"],
)
async def test_a_refused_request_is_forgotten_when_its_retry_is_answered(
    served: Served, words: int, headers: dict[str, str], served_then: bool
) -> None:
    start_more(served)
    asking = await filled(served)
    asking += [asyncio.create_task(served.ask(1, index)) for index in (2, 2, 2, 3, 3, 3, 4)]
    await until(lambda: served.waiting(7))
    assert [await served.ask(1, 5), await served.ask(1, 5, **RETRY)] == [503, 503]
    served.site.coordinator.weights.set()
    await asyncio.gather(*asking)
    assert await served.ask(words, 5, **headers) == 200
    assert (served.memory.why_unserved(attempt_of(5)) is None) is served_then


async def test_a_retry_that_is_refused_counts_whatever_its_request_met(served: Served) -> None:
    start_more(served)
    asking = await filled(served)
    asking += [asyncio.create_task(served.ask(1, index)) for index in (2, 2, 2, 3, 3, 3, 4)]
    await until(lambda: served.waiting(7))
    assert await served.ask(1, 5, **RETRY) == 503
    assert served.memory.why_unserved(attempt_of(5))
    served.site.coordinator.weights.set()
    await asyncio.gather(*asking)


async def test_a_client_that_leaves_while_it_waits_had_no_place(served: Served) -> None:
    start_more(served)
    asking = await filled(served)
    leaving = asyncio.create_task(served.ask(1, 2))
    await until(lambda: served.waiting(1))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.sleep(0.1)
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking) == [200] * 7
    await until(lambda: served.memory.held == 0)
    assert served.memory.why_unserved(attempt_of(2))
    assert await served.ask(1, 2, **RETRY) == 200
    assert served.memory.why_unserved(attempt_of(2)) is None


@pytest.mark.parametrize("first", ["the request", "its retry"])
async def test_a_retry_answers_a_request_whose_client_left_in_any_order(first: str) -> None:
    memory, owner, left = Memory(ByteBudget(8, 8, 8, places=2)), attempt_of(1), False
    ends = {"the request": asyncio.Event(), "its retry": asyncio.Event()}

    async def ask(name: str, sender: Sender) -> None:
        async with memory.room(owner, 1, 10.0, sender) as room:
            await ends[name].wait()
            room.holds(3)
            room.answers()

    async with AsyncExitStack() as others:
        for index in (2, 3):
            await others.enter_async_context(memory.room(attempt_of(index), 1, 1.0))
        senders = {"the request": Sender(False, lambda: left), "its retry": Sender(True, lambda: False)}
        asking = [asyncio.create_task(ask(*one)) for one in senders.items()]
        await until(lambda: memory.stats.memory_waits == 2)
    await asyncio.sleep(0)
    assert memory.why_unserved(owner) is None, "their turns are generated"
    left = True
    assert "no place for 1 of its requests" in (memory.why_unserved(owner) or "")
    ends[first].set()
    await asyncio.sleep(0.01)
    for end in ends.values():
        end.set()
    await asyncio.gather(*asking)
    assert memory.why_unserved(owner) is None


async def test_a_client_that_leaves_with_half_a_body_is_no_failure(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    start_more(served)
    asking = await filled(served)
    _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nAuthorization: Bearer {key(2)}"
    writer.write(f"{head}\r\n\r\n{{".encode())
    await until(lambda: served.waiting(1))
    writer.close()
    await asyncio.sleep(0.1)
    served.site.coordinator.weights.set()
    assert await asyncio.gather(*asking) == [200] * 7
    await until(lambda: served.memory.held == 0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_request_waits_until_its_key_expires_and_is_then_refused(served: Served) -> None:
    memory, owner = served.memory, attempt_of(7)
    sender = Sender(retry=False, has_left=lambda: False)
    async with AsyncExitStack() as stack:
        for index in range(4):
            await stack.enter_async_context(memory.room(attempt_of(index), 20_000, 1.0))
        with pytest.raises(GatewayError, match="all episodes together") as caught:
            async with memory.room(owner, 1, 0.01, sender):
                pass
    assert (caught.value.status, memory.stats.memory_full) == (503, 1)
    assert memory.why_unserved(owner)
    async with memory.room(owner, 1, 1.0):
        pass


async def test_a_wait_for_the_attempts_own_bytes_is_its_agents_doing(served: Served) -> None:
    memory, owner = served.memory, attempt_of(7)
    sender = Sender(retry=False, has_left=lambda: True)
    async with memory.room(owner, 20_000, 1.0):
        with pytest.raises(GatewayError, match="its share of 20000 bytes") as caught:
            async with memory.room(owner, 1, 0.01, sender):
                pass
        asking = asyncio.create_task(take(memory, owner, sender))
        await until(lambda: served.waiting(2))
        assert memory.why_unserved(owner) is None
    await asking
    assert (caught.value.status, memory.stats.memory_refused, memory.why_unserved(owner)) == (429, 1, None)


def test_a_budget_and_the_connections_follow_from_the_bounds() -> None:
    bounds = GatewayBounds(requests=10_000, body_bytes=300 << 20)
    settings = ServerSettings.of(bounds, 610.0)
    assert settings.overtime_seconds == 610.0
    assert (settings.requests, settings.held_bytes) == (10_000, 300 << 20)
    assert settings.connections.total == bounds.connections
    assert bounds.requests < settings.connections.of_a_host < settings.connections.total
    assert ServerSettings.of(GatewayBounds(), 30.0).connections == CONNECTIONS


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

    async def chat(
        self, capability: Capability, body: bytes, retry: bool = True, number: RequestNumber | None = None
    ) -> Answer:
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
