"""Calls to an actor whose caller gives up."""

import asyncio
import gc
from concurrent.futures import Future

import pytest
from ray import exceptions

from rljob_runtime.coordinator.protocols import PeerGone
from rljob_runtime.coordinator.ray_binding import RayWire


class Handle:
    """An actor's, with one call at a time under way."""

    def __init__(self) -> None:
        self.call = self
        self.made: Future[object] = Future()

    def remote(self, method: str, *arguments: object) -> "Handle":
        return self

    def future(self) -> "Future[object]":
        return self.made


def test_an_actor_that_dies_after_its_caller_gave_up_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up() -> None:
        handle = Handle()
        call = asyncio.create_task(RayWire("a", handle).call(60.0, "poll"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        handle.made.set_exception(exceptions.ActorDiedError())
        await asyncio.sleep(0.01)

    asyncio.run(give_up())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_one_that_dies_before_is_gone() -> None:
    async def wait() -> None:
        handle = Handle()
        handle.made.set_exception(exceptions.ActorDiedError())
        await RayWire("a", handle).call(60.0, "poll")

    with pytest.raises(PeerGone, match="its process has ended"):
        asyncio.run(wait())
