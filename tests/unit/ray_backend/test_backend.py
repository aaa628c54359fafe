"""Calls to an actor whose caller gives up."""

import asyncio
import gc
import time
from concurrent.futures import Future

import pytest
from ray import exceptions

from rljob_runtime.coordinator.core.event_loop_lag import EventLoopLag
from rljob_runtime.protocols import PeerGone, PeerTimeout
from rljob_runtime.protocols.remote import CallTimeouts, RemoteReplica, RemoteWorker
from rljob_runtime.ray_backend.actors import Answer
from rljob_runtime.ray_backend.backend import RayChannel


class Handle:
    """An actor's, with one call at a time under way."""

    def __init__(self) -> None:
        self.call = self
        self.made: Future[object] = Future()

    def remote(self, method: str, *arguments: object) -> "Handle":
        return self

    def future(self) -> "Future[object]":
        return self.made


def test_an_actor_that_dies_after_a_timeout_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up() -> None:
        handle = Handle()
        call = asyncio.create_task(RayChannel("a", handle).call(60.0, "poll"))
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
        await RayChannel("a", handle).call(60.0, "poll")

    with pytest.raises(PeerGone, match="its process has ended"):
        asyncio.run(wait())


class SlowPickle(Handle):
    """Ray takes its time over the arguments: they are large, or its object store is full."""

    def remote(self, method: str, *arguments: object) -> Handle:
        time.sleep(0.5)
        return self


@pytest.mark.parametrize(
    "send",
    [
        lambda wire: RemoteReplica("a", wire, CallTimeouts()).submit(1, ()),
        lambda wire: RemoteWorker("a", wire, CallTimeouts()).compute(1, 1, 1, ()),
    ],
    ids=["submit", "compute"],
)
def test_the_loop_goes_on_while_what_models_wrote_is_pickled(send):
    async def longest_turn() -> float:
        watch, handle = EventLoopLag(), SlowPickle()
        handle.made.set_result(Answer())
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        await send(RayChannel("a", handle))
        watching.cancel()
        return watch.longest_seconds

    assert asyncio.run(longest_turn()) < 0.25


def test_a_message_that_is_never_sent_is_given_up():
    async def give_up() -> None:
        await RemoteReplica("a", RayChannel("a", SlowPickle()), CallTimeouts(command=0.1)).submit(1, ())

    with pytest.raises(PeerTimeout, match=r"no answer to submit within 0\.1 s"):
        asyncio.run(give_up())


def test_nothing_overtakes_what_is_on_its_way_though_its_caller_gave_it_up():
    """Otherwise a machine would receive the end of its loan first, and compute for no step."""

    class Order(Handle):
        def __init__(self) -> None:
            super().__init__()
            self.made.set_result(Answer())
            self.sent: list[str] = []

        def remote(self, method: str, *arguments: object) -> Handle:
            if method == "compute":
                time.sleep(0.3)
            self.sent.append(method)
            return self

    async def play() -> list[str]:
        handle = Order()
        worker = RemoteWorker("a", RayChannel("a", handle), CallTimeouts())
        computing = asyncio.create_task(worker.compute(1, 1, 1, ()))
        await asyncio.sleep(0.05)
        computing.cancel()
        await worker.release(1)
        return handle.sent

    assert asyncio.run(play()) == ["compute", "release"]
