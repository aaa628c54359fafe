"""Equal requests of a client without a retry header are retries if their answer was lost, and else other samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest

from rljob_runtime.gateway.capability import Capability, gateway_key, mint
from rljob_runtime.gateway.server import ServerSettings, serve
from rljob_runtime.gateway.wire.repeats import Asked, Repeats, request_digest
from tests.support.gateway.site import EPISODE, Site, make_site, user
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.waiting import until

KEY = gateway_key(b"secret")
HEADERS = {"Authorization": f"Bearer {mint(KEY, Capability(EPISODE, 1_000))}"}
BODY = json.dumps({"messages": [user("hi")]}).encode()
RETRY, NEW = {"x-stainless-retry-count": "1"}, {"x-stainless-retry-count": "0"}


@dataclass
class Served:
    """A gateway that listens on loopback."""

    site: Site
    url: str

    async def ask(self, headers: dict[str, str] | None = None, body: bytes = BODY) -> str:
        """Ask on a connection of its own; return the answer's id, or its error's code."""
        async with (
            aiohttp.ClientSession(headers={**HEADERS, **(headers or {})}) as session,
            session.post(f"{self.url}/v1/chat/completions", data=body) as got,
        ):
            found = await got.json()
            return str(found["id"] if got.status == 200 else found["error"]["code"])

    @property
    def repeats(self) -> int:
        return self.site.gateway.repeats.stats.repeats


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        site = make_site()
        stack.callback(site.executor.shutdown)
        port = await stack.enter_async_context(serve(site.gateway, KEY, lambda: 0.0, "127.0.0.1", 0, ServerSettings()))
        yield Served(site, f"http://127.0.0.1:{port}")


async def test_a_client_that_has_its_answer_gets_another_one(served: Served) -> None:
    assert len({await served.ask() for _ in range(3)}) == 3
    assert served.repeats == 2


async def test_clients_that_ask_concurrently_have_their_own_answers(served: Served) -> None:
    served.site.coordinator.weights.clear()
    asking = [asyncio.create_task(served.ask()) for _ in range(3)]
    await until(lambda: len(served.site.coordinator.calls) == 3)
    served.site.coordinator.weights.set()
    assert len(set(await asyncio.gather(*asking))) == 3


async def test_a_client_that_lost_its_answer_receives_the_recorded_one(served: Served) -> None:
    served.site.coordinator.weights.clear()
    lost = asyncio.create_task(served.ask())
    await until(lambda: len(served.site.coordinator.calls) == 1)
    lost.cancel()
    again = asyncio.create_task(served.ask())
    await until(lambda: len(served.site.coordinator.calls) == 2)
    served.site.coordinator.weights.set()
    first = await again
    assert (served.repeats, served.site.gateway.stats.retries_served) == (0, 1)
    assert await served.ask() != first, "it has its answer now"


async def test_a_request_that_was_refused_is_sent_again(served: Served) -> None:
    wrong = json.dumps({"messages": [user("hi")], "model": "other"}).encode()
    assert [await served.ask(body=wrong) for _ in range(2)] == ["model_not_found"] * 2
    assert served.repeats == 0


async def test_what_a_client_says_counts(served: Served) -> None:
    first = await served.ask()
    assert await served.ask(RETRY) == first
    assert await served.ask(NEW) != first
    assert served.repeats == 0


async def test_what_is_not_known_is_left_to_the_record(served: Served) -> None:
    first = await served.ask(NEW)
    assert await served.ask() == first


def decided(repeats: Repeats, index: int = 0, path: str = "/a", answered: bool = True) -> bool | None:
    key = attempt_of(index), request_digest(path, BODY)
    with repeats.asked(key, None, lambda: False) as asked:
        asked.is_answered = answered
        return asked.retry


def test_requests_of_other_attempts_and_routes_are_others() -> None:
    repeats = Repeats()
    places = [(0, "/a"), (1, "/a"), (0, "/b")]
    assert [decided(repeats, *place) for place in places] == [None] * 3
    assert [decided(repeats, *place, answered=False) for place in places] == [False] * 3
    assert [decided(repeats, *place) for place in places] == [True] * 3


def test_so_many_requests_are_remembered() -> None:
    repeats = Repeats(most=2)
    assert [decided(repeats, index) for index in (0, 1, 0, 2, 0, 1)] == [None, None, False, None, False, None]


@pytest.mark.parametrize(
    ("answered", "left", "lost"), [(True, True, False), (False, False, False), (False, True, True), (False, None, True)]
)
def test_an_answer_is_lost_if_its_client_is_gone_without_it(answered: bool, left: bool | None, lost: bool) -> None:
    asked = Asked(None, None if left is None else lambda: bool(left), answered)
    assert asked.is_lost == lost
