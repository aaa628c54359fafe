"""The gateway's own share of a turn is what is left without the waits for others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from rljob_runtime.gateway import own_share
from rljob_runtime.gateway.link.client import LinkClient
from rljob_runtime.gateway.link.server import serve_link
from rljob_runtime.gateway.own_share import BOUNDS, OwnShare, least_bound, waited, waiting
from rljob_runtime.protocols.turns import TurnBounds, TurnCall
from tests.support.gateway.site import CAPABILITY, EPISODE, make_site, user
from tests.support.gateway.stand_in_environments import StandInEnvironments


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("took", "waits", "own"),
    [(0.5, (0.25, 0.125), 0.125), (0.02, (), 0.02), (0.5, (0.6,), 0.0), (1.0, (-0.1,), 1.0), (100.0, (), 100.0)],
)
def test_waits_are_no_share(took: float, waits: tuple[float, ...], own: float) -> None:
    clock = Clock()
    share = OwnShare(clock)
    with share.measured():
        clock.now += took
        for seconds in waits:
            waited(seconds)
    assert share.seconds == pytest.approx(own)
    counts = dict(share.buckets)
    assert counts["+Inf"] == 1
    assert [counts[str(bound)] for bound in BOUNDS] == [float(round(own, 9) <= bound) for bound in BOUNDS]


def test_a_request_that_ends_by_an_error_is_no_turn() -> None:
    share = OwnShare()
    with pytest.raises(RuntimeError), share.measured():
        raise RuntimeError
    waited(5.0)
    assert share.buckets[-1] == ("+Inf", 0.0)


async def test_each_request_has_its_own_waits_also_in_tasks_that_it_starts() -> None:
    clock = Clock()
    share = OwnShare(clock)

    async def request(seconds: float) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            waited(seconds)

        with share.measured():
            await asyncio.create_task(work())
            clock.now += seconds

    await request(0.3)
    await asyncio.gather(request(1.0), request(2.0))
    assert share.seconds == pytest.approx(1.0), "the first one's second is no wait of the second one"


def test_a_wait_counts_although_it_ends_by_an_error() -> None:
    clock = Clock()
    share = OwnShare(clock)
    with share.measured(), pytest.raises(TimeoutError), waiting(clock):  # noqa: PT012
        clock.now += 4.0
        raise TimeoutError
    assert share.seconds == 0.0


@pytest.mark.parametrize(
    ("counts", "share", "bound"),
    [
        ((), 0.99, 0.0),
        ((0, 0, 0), 0.99, 0.0),
        ((98, 99, 100), 0.99, 0.02),
        ((98, 98, 100), 0.99, float("inf")),
        ((99, 100, 100), 0.99, 0.01),
    ],
)
def test_the_bound_of_a_share(counts: tuple[int, ...], share: float, bound: float) -> None:
    buckets = [(name, float(count)) for name, count in zip(("0.01", "0.02", "+Inf"), counts, strict=False)]
    assert least_bound(buckets, share) == bound


async def test_the_link_counts_from_the_sent_call_to_its_answer(tmp_path: Path) -> None:
    site = make_site()
    share = OwnShare()
    seconds = 0.2
    turns = site.coordinator.turn

    async def later(call: TurnCall) -> object:
        await asyncio.sleep(seconds)
        return await turns(call)

    site.coordinator.turn = later  # type: ignore[method-assign,assignment]
    call = TurnCall(EPISODE, "d", False, [1, 2], TurnBounds(4), b"{}", 4e9)
    async with serve_link(tmp_path / "s", site.coordinator, StandInEnvironments()), LinkClient(tmp_path / "s") as link:
        while link.why_away:  # noqa: ASYNC110, it connects in the background
            await asyncio.sleep(0.01)
        began = own_share.time.monotonic()
        with share.measured():
            await link.turn(call)
    assert own_share.time.monotonic() - began >= seconds
    assert share.seconds < seconds
    site.executor.shutdown()


async def test_the_routes_measure_answered_turns() -> None:
    from rljob_runtime.gateway.capability import mint
    from rljob_runtime.gateway.server import serve

    site, share, key = make_site(), OwnShare(), b"k" * 32
    async with serve(site.gateway, key, lambda: site.clock[0], "127.0.0.1", 0, own=share) as port:
        headers = {"Authorization": f"Bearer {mint(key, CAPABILITY)}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            body = {"model": "policy", "messages": [user("first")]}
            async with session.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
            async with session.post("/v1/chat/completions", json={"model": "other"}) as answer:
                assert answer.status >= 400
    assert share.buckets[-1] == ("+Inf", 1.0)
    assert share.seconds > 0
    site.executor.shutdown()
