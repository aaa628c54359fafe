"""A driver that waits for a dead head must not keep the coordinator's pod alive."""

import asyncio
import threading

import pytest
import ray

from rljob_runtime.coordinator.control_plane.lease import LeaseLost
from rljob_runtime.coordinator.core.async_utils import in_daemon_thread
from rljob_runtime.entrypoints.coordinator import _disconnect_from_ray
from rljob_runtime.entrypoints.ray_node import NodeEnded


def test_the_program_ends_while_the_driver_still_waits() -> None:
    release, came_back = threading.Event(), threading.Event()

    def stuck() -> None:
        release.wait(30)
        came_back.set()

    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon_thread(stuck, "driver"), 0.05)

    asyncio.run(program())
    assert not came_back.is_set()
    release.set()
    assert came_back.wait(30)


def test_what_the_driver_raises_is_raised() -> None:
    def refused() -> None:
        raise ConnectionError("no head")

    with pytest.raises(ConnectionError, match="no head"):
        asyncio.run(in_daemon_thread(refused, "driver"))


@pytest.mark.parametrize(
    ("error", "goodbyes"),
    [(LeaseLost("late"), 0), (NodeEnded("ray's head ended"), 0), (RuntimeError("a bug"), 1), (None, 1)],
    ids=repr,
)
def test_a_coordinator_without_its_lease_or_its_head_exits_immediately(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, goodbyes: int
) -> None:
    said: list[None] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: said.append(None))

    def program() -> None:
        with _disconnect_from_ray():
            if error is not None:
                raise error

    if error is None:
        program()
    else:
        with pytest.raises(type(error), match=str(error)):
            program()
    assert len(said) == goodbyes
