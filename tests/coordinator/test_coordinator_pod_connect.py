"""A driver that waits for a dead head must not keep the coordinator's pod alive."""

import asyncio
import threading

import pytest

from rljob_runtime.pod.coordinator import _aside


def test_the_program_ends_while_the_driver_still_waits() -> None:
    release, came_back = threading.Event(), threading.Event()

    def stuck() -> None:
        release.wait(30)
        came_back.set()

    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_aside(stuck), 0.05)

    asyncio.run(program())
    assert not came_back.is_set()
    release.set()
    assert came_back.wait(30)


def test_what_the_driver_raises_is_raised() -> None:
    def refused() -> None:
        raise ConnectionError("no head")

    with pytest.raises(ConnectionError, match="no head"):
        asyncio.run(_aside(refused))
