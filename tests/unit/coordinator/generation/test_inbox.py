"""The inbox of a stage: events in their order, one wait for the first of them, and none lost to a timeout."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.coordinator.generation.inbox import Inbox

LONG, SHORT = 30.0, 0.01


async def test_all_pending_events_come_in_their_order():
    inbox: Inbox[int] = Inbox()
    for number in range(5):
        inbox.post(number)
    assert await inbox.next(LONG) == [0, 1, 2, 3, 4]
    assert await inbox.next(SHORT) == []


async def test_the_first_event_ends_the_wait():
    inbox: Inbox[str] = Inbox()
    waiting = asyncio.create_task(inbox.next(LONG))
    await asyncio.sleep(0)
    assert not waiting.done()
    inbox.post("late")
    inbox.post("later")
    async with asyncio.timeout(60.0):
        assert await waiting == ["late", "later"]


async def test_draining_takes_what_is_posted_meanwhile():
    inbox: Inbox[int] = Inbox()
    inbox.post(3)
    taken = []
    for number in inbox.drain():
        taken.append(number)
        if number:
            inbox.post(number - 1)
    assert taken == [3, 2, 1, 0]
    assert list(inbox.drain()) == []


async def test_a_cancelled_wait_takes_no_event():
    inbox: Inbox[int] = Inbox()
    waiting = asyncio.create_task(inbox.next(LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    inbox.post(1)
    assert await inbox.next(SHORT) == [1]


@given(st.lists(st.one_of(st.integers(0, 9), st.none()), max_size=40))
def test_every_event_comes_once(steps: list[int | None]):
    """A number is posted; None looks at the inbox."""

    async def play() -> list[int]:
        inbox: Inbox[int] = Inbox()
        found: list[int] = []
        for step in steps:
            if step is None:
                found += await inbox.next(0)
            else:
                inbox.post(step)
        return [*found, *inbox.drain()]

    assert asyncio.run(play()) == [step for step in steps if step is not None]
