"""Equal requests of a client without a retry header are retries if their answer was lost, and else other samples."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import aiohttp
import pytest

from rljob_runtime.gateway.capability import Capability, gateway_key, mint
from rljob_runtime.gateway.server import ServerSettings, serve
from rljob_runtime.gateway.wire.repeats import Asked, Repeats, request_digest
from rljob_runtime.protocols.errors import PeerGone
from rljob_runtime.protocols.turns import RecordedTurn, RequestNumber, TurnCall, numbered, unnumbered
from tests.support.gateway.site import EPISODE, SETTINGS, Site, make_site, user
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

    async def begin(self, clients: int) -> list[asyncio.Task[str]]:
        """Let clients ask one after another; return when the coordinator has all their calls."""
        calls, asking = self.site.coordinator.calls, []
        for _ in range(clients):
            before = len(calls)
            asking.append(asyncio.create_task(self.ask()))
            await until(lambda before=before: len(calls) > before)  # type: ignore[misc]
        return asking

    @property
    def turns(self) -> list[int]:
        """The turns of the attempt that would be trained on."""
        return [node.id for node in self.site.coordinator.episodes[EPISODE].sampled]

    @property
    def repeats(self) -> int:
        return self.site.gateway.repeats.stats.repeats


def turn_of(answer: str) -> int:
    """Return the turn of an answer's id."""
    return int(answer.rpartition("-")[2])


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


async def test_a_client_whose_call_comes_last_has_its_own_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls may overtake each other: prompts are written in threads."""
    turn, late = served.site.coordinator.turn, asyncio.Event()
    first = True

    async def overtaken(call: TurnCall) -> RecordedTurn:
        nonlocal first
        was_first, first = first, False
        if was_first:
            await late.wait()
        return await turn(call)

    monkeypatch.setattr(served.site.coordinator, "turn", overtaken)
    asking = asyncio.create_task(served.ask())
    await until(lambda: not first)
    other = await served.ask()
    late.set()
    assert await asking != other


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


@pytest.mark.parametrize("other_has_left", [False, True])
async def test_a_lost_answer_is_received_after_others_have_asked(served: Served, other_has_left: bool) -> None:
    """The client of the first turn, and not of the newest one, asks again."""
    served.site.coordinator.weights.clear()
    lost, other = await served.begin(2)
    lost.cancel()
    await asyncio.wait([lost])
    (again,) = await served.begin(1)
    if other_has_left:
        other.cancel()
        await asyncio.wait([other])
        (other,) = await served.begin(1)
    served.site.coordinator.weights.set()
    assert [turn_of(await one) for one in (again, other)] == served.turns
    assert (len(served.turns), served.repeats) == (2, 1)


async def test_the_turn_of_a_lost_answer_is_given_and_not_the_newest(served: Served) -> None:
    served.site.coordinator.weights.clear()
    lost, other = await served.begin(2)
    lost.cancel()
    await asyncio.wait([lost])
    served.site.coordinator.weights.set()
    newest = await other
    assert turn_of(newest) == served.turns[-1]
    assert turn_of(await served.ask()) == served.turns[0]
    assert await served.ask() not in {newest}
    assert len(served.turns) == 3


async def test_clients_that_all_lost_their_answers_each_receive_one_of_them(served: Served) -> None:
    """Engines load weights for longer than the clients wait, twice."""
    served.site.coordinator.weights.clear()
    for _ in range(2):
        lost = await served.begin(4)
        for one in lost:
            one.cancel()
        await asyncio.wait(lost)
    again = await served.begin(4)
    served.site.coordinator.weights.set()
    found = {turn_of(await one) for one in again}
    assert (sorted(found), len(found)) == (served.turns, 4)
    assert (served.repeats, served.site.gateway.stats.retries_served) == (3, 8)


async def test_clients_have_their_own_answers_when_the_coordinator_was_away(served: Served) -> None:
    """Each call is sent again as a retry."""
    found = set()
    for _ in range(3):
        served.site.coordinator.faults = [PeerGone("restarts")]
        found.add(await served.ask())
    assert (len(found), len(served.site.coordinator.calls)) == (3, 6)


async def test_an_attempt_that_has_ended_is_forgotten(served: Served) -> None:
    await served.ask()
    assert served.site.gateway.repeats.remembered == 1
    del served.site.coordinator.episodes[EPISODE]
    assert await served.ask() == "attempt_ended"
    assert served.site.gateway.repeats.remembered == 0


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


def decided(repeats: Repeats, index: int = 0, path: str = "/a", answered: bool = True) -> bool:
    key = attempt_of(index), request_digest(path, BODY)
    with repeats.asked(key, False, lambda: False) as asked:
        asked.is_answered = answered
        return asked.retry


def test_requests_of_other_attempts_and_routes_are_others() -> None:
    repeats = Repeats()
    places = [(0, "/a"), (1, "/a"), (0, "/b")]
    assert [decided(repeats, *place) for place in places] == [True] * 3
    assert [decided(repeats, *place, answered=False) for place in places] == [False] * 3
    assert [decided(repeats, *place) for place in places] == [True] * 3


def test_so_many_requests_are_remembered() -> None:
    repeats = Repeats(most=2)
    assert [decided(repeats, index) for index in (0, 1, 0, 2, 0, 1)] == [True, True, False, True, False, True]
    assert repeats.remembered == 2


def test_a_gateway_remembers_as_many_as_its_settings_say() -> None:
    site = make_site(bounds=replace(SETTINGS, remembered=1))
    for index in range(2):
        decided(site.gateway.repeats, index)
    site.executor.shutdown()
    assert site.gateway.repeats.remembered == 1


def test_an_attempt_that_is_forgotten_leaves_no_request() -> None:
    repeats = Repeats()
    for place in ((0, "/a"), (0, "/b"), (1, "/a")):
        decided(repeats, *place)
    repeats.forget(attempt_of(0))
    repeats.forget(attempt_of(7))
    assert repeats.remembered == 1
    assert [decided(repeats, index) for index in (0, 1)] == [True, False]


def test_a_lost_answer_is_taken_up_once_and_the_first_comes_first() -> None:
    repeats, key, left = Repeats(), (attempt_of(), b"hi"), {1, 2}
    with contextlib.ExitStack() as stack:
        found = []
        for client in range(6):
            asked = stack.enter_context(repeats.asked(key, False, lambda client=client: client in left))  # type: ignore[misc]
            found.append((asked.retry, asked.number.index if asked.number else None))
            if client == 4:
                left.add(4)
    assert found == [(True, 0), (False, 1), (True, 1), (True, 1), (False, 2), (True, 2)]


def test_equal_requests_of_each_process_are_a_series_of_their_own() -> None:
    found = set()
    for repeats in (Repeats(), Repeats()):
        with repeats.asked((attempt_of(), b"hi"), False, lambda: False) as asked:
            assert asked.number is not None
            found.add(asked.number.series)
    assert len(found) == 2


@pytest.mark.parametrize("digest", ["", "a1", "a#b", "a#", "a#5e", "a#12.", "a#.12", "a\n"])
def test_only_a_number_makes_a_digest_one_of_equal_requests(digest: str) -> None:
    number = RequestNumber("5e", 12)
    assert unnumbered(digest) == (digest, None)
    assert unnumbered(numbered(digest, number)) == (digest, number)


@pytest.mark.parametrize(
    ("answered", "left", "lost"), [(True, True, False), (False, False, False), (False, True, True), (False, None, True)]
)
def test_an_answer_is_lost_if_its_client_is_gone_without_it(answered: bool, left: bool | None, lost: bool) -> None:
    asked = Asked(True, None if left is None else lambda: bool(left), is_answered=answered)
    assert asked.is_lost == lost
