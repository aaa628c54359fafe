"""The turns of attempts stay in the gateway as long as their bytes fit, and are read again without a loss."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.gateway_bounds import ATTEMPT_BYTES, LEAST_HISTORIES, TOKEN_BYTES, TURN_BYTES
from rljob_runtime.gateway.capability import Capability
from rljob_runtime.gateway.gateway import GatewaySettings
from rljob_runtime.gateway.paths import AttemptPaths, Paths
from rljob_runtime.gateway.text.turn_text import TurnTokens
from tests.support.gateway.site import (
    EPISODE,
    TOKENIZER,
    Site,
    assert_trained_tokens_are_the_engines,
    make_site,
    message,
    user,
)
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.waiting import until

OTHER = attempt_of(1)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = make_site()
    yield made
    await made.gateway.close()
    made.executor.shutdown()


def small(site: Site, most: int) -> Site:
    """A new gateway that keeps so many bytes."""
    return site.restarted(GatewaySettings("policy", 4096, TOKENIZER.size, 512, history_bytes=most))


async def ask(site: Site, index: int, messages: list[Any]) -> dict[str, Any]:
    body = json.dumps({"messages": messages}).encode()
    found: dict[str, Any] = json.loads((await site.gateway.chat(Capability(attempt_of(index), 1_000), body)).body)
    return found


def paths_of(tokens: int) -> Paths:
    found = Paths()
    found.add(b"one", TurnTokens([1] * (tokens - 1), [2]))
    return found


async def test_many_small_episodes_in_rotation_are_read_once(site: Site) -> None:
    """Each has two turns, and all others have one between them."""
    count = 2048
    assert GatewaySettings("policy", 4096, TOKENIZER.size, 512).history_bytes == LEAST_HISTORIES
    first = []
    for index in range(count):
        site.coordinator.start(attempt_of(index))
        first.append(message(await ask(site, index, [user("hi")])))
    for index, said in enumerate(first):
        await ask(site, index, [user("hi"), said, user("go on")])
    stats = site.gateway.histories.stats
    assert (stats.history_misses, stats.history_rereads, site.coordinator.histories) == (count, 0, count)
    assert site.gateway.stats.rewritten == 0


async def test_paths_beyond_the_bytes_are_dropped_and_read_again(site: Site) -> None:
    small_site = small(site, ATTEMPT_BYTES + TURN_BYTES + 200)
    site.coordinator.start(OTHER)
    first = message(await small_site.chat([user("first")]))
    await ask(small_site, 1, [user("x")])
    await small_site.chat([user("first"), first, user("next")])
    stats = small_site.gateway.histories.stats
    assert (stats.history_misses, stats.history_rereads, site.coordinator.histories) == (3, 1, 3)
    assert small_site.gateway.stats.rewritten == 0
    assert site.coordinator.episodes[EPISODE].stats.forks == 0


async def test_an_attempt_that_grows_drops_another(site: Site) -> None:
    two = small(site, 2 * (ATTEMPT_BYTES + TURN_BYTES) + 300)
    site.coordinator.start(OTHER)
    await ask(two, 1, [user("x")])
    await two.chat([user("first")])
    assert two.gateway.histories.kept(OTHER) is not None
    await two.chat([user("second")])
    assert two.gateway.histories.kept(OTHER) is None
    assert two.gateway.histories.kept(EPISODE) is not None


async def test_an_attempt_beyond_all_bytes_is_read_for_each_turn(site: Site) -> None:
    tiny = small(site, 1)
    messages: list[Any] = [user("first")]
    for turn in range(3):
        messages += [message(await tiny.chat(messages)), user(f"question {turn}")]
    assert tiny.gateway.histories.stats.history_rereads == 2
    assert tiny.gateway.stats.rewritten == 0
    assert_trained_tokens_are_the_engines(tiny)


async def test_requests_of_an_attempt_wait_for_one_read_of_its_turns(site: Site) -> None:
    """Its turns are much larger than its requests, and a program sends many at a time."""
    await site.chat([user("first")])
    other = site.restarted()
    await asyncio.gather(*(other.chat([user(f"further {number}")]) for number in range(8)))
    assert site.coordinator.histories == 2
    stats = other.gateway.histories.stats
    assert (stats.history_misses, stats.history_rereads) == (8, 1)


async def test_a_turn_that_is_answered_while_its_attempt_is_read_is_not_lost(site: Site) -> None:
    """Without it, the next request would begin another branch."""
    site.coordinator.weights.clear()
    answered = asyncio.create_task(site.chat([user("first")]))
    await until(lambda: len(site.coordinator.calls) == 1)
    site.gateway.histories.forget(EPISODE)
    read, gate = site.coordinator.history, asyncio.Event()

    async def held_up(*asked: Any, **more: Any) -> Any:
        stored = await read(*asked, **more)
        await gate.wait()
        return stored

    site.coordinator.history = held_up  # type: ignore[method-assign]
    other = asyncio.create_task(site.chat([user("another")]))
    await until(lambda: site.coordinator.histories == 2)
    site.coordinator.weights.set()
    first = message(await answered)
    gate.set()
    await other
    await site.chat([user("first"), first, user("next")])
    assert (site.gateway.stats.rewritten, site.coordinator.histories) == (0, 3)
    assert_trained_tokens_are_the_engines(site)


async def test_no_request_holds_paths_while_it_waits_for_its_turn(site: Site) -> None:
    first = message(await site.chat([user("first")]))
    site.coordinator.weights.clear()
    waiting = asyncio.create_task(site.chat([user("first"), first, user("next")]))
    await until(lambda: len(site.coordinator.calls) == 2)
    site.gateway.histories.forget(EPISODE)
    site.coordinator.weights.set()
    second = message(await waiting)
    assert site.gateway.histories.kept(EPISODE) is None
    await site.chat([user("first"), first, user("next"), second, user("last")])
    assert site.gateway.stats.rewritten == 0
    assert_trained_tokens_are_the_engines(site)


def test_the_bytes_of_an_attempt_are_those_of_its_tokens_and_turns() -> None:
    paths = paths_of(10)
    paths.add(b"two", TurnTokens([1] * 9 + [2, 3], [4, 5]), paths.deepest([b"one", b"two"]))
    assert paths.turns == 2
    assert paths.size == ATTEMPT_BYTES + 2 * TURN_BYTES + TOKEN_BYTES * 13


def test_the_oldest_attempts_are_dropped_first() -> None:
    size = paths_of(100).size
    kept = AttemptPaths(3 * size)
    for index in range(3):
        kept.put(attempt_of(index), paths_of(100))
    kept.get(attempt_of(0))
    kept.put(attempt_of(3), paths_of(100))
    assert [kept.get(attempt_of(index)) is not None for index in range(4)] == [True, False, True, True]
    large = paths_of(10_000)
    assert kept.put(attempt_of(4), large) is large
    assert kept.get(attempt_of(4)) is None
    assert kept.held == 3 * size, "one that is too large drops no other"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 400), st.booleans()), max_size=40))
def test_paths_never_take_more_than_their_bytes(steps: list[tuple[int, int, bool]]) -> None:
    most = 4 * (ATTEMPT_BYTES + TURN_BYTES)
    kept = AttemptPaths(most)
    for index, tokens, ends in steps:
        episode = attempt_of(index)
        if ends:
            kept.forget(episode)
        elif (paths := kept.get(episode)) is not None:
            paths.add(bytes([tokens % 256]), TurnTokens([1] * tokens, [2]))
            kept.measure(episode)
        else:
            kept.put(episode, paths_of(tokens + 1))
        sizes = [one.size for one in (kept.get(attempt_of(number)) for number in range(7)) if one is not None]
        assert kept.held == sum(sizes) <= most
