"""Waiting for wait_for_event: what came is told once, what does not come ends the wait in time; what goes on aside is
ended at the end."""

import asyncio

import pytest

from rljob_runtime.coordinator.core.async_utils import BackgroundTasks, wait_for_event
from rljob_runtime.simulator.core import virtual_time


@pytest.mark.parametrize(
    ("comes_after", "bound", "told", "waited"),
    [(None, 30.0, False, 30.0), (5.0, 30.0, True, 5.0), (5.0, None, True, 5.0), (0.0, 30.0, True, 0.0)],
)
def test_news_or_the_end_of_patience(comes_after, bound, told, waited):
    async def program():
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        if comes_after == 0:
            event.set()
        elif comes_after is not None:
            loop.call_later(comes_after, event.set)
        answer = await wait_for_event(event, bound)
        return answer, event.is_set(), loop.time()

    assert virtual_time.run(program()) == (told, False, waited)


def test_news_that_came_before_the_wait_is_told_once():
    async def program():
        event = asyncio.Event()
        event.set()
        return [await wait_for_event(event, 1.0) for _ in range(2)]

    assert virtual_time.run(program()) == [True, False]


def test_what_goes_on_aside_is_given_a_moment_at_the_end():
    async def program():
        aside, ended, loop = BackgroundTasks(), [], asyncio.get_running_loop()
        await aside.close()

        async def work(seconds):
            try:
                await asyncio.sleep(seconds)
                ended.append(seconds)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        for seconds in (1.0, 3.0, 30.0):
            aside.start(work(seconds))
        await asyncio.sleep(2.0)
        await aside.close(2.0)
        return ended, loop.time()

    assert virtual_time.run(program()) == ([1.0, 3.0, "cancelled"], 4.0)
