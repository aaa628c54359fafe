"""The gateway's container keeps a gateway alive for as long as the coordinator needs one. The gateway is a stand-in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.entrypoints import gateway_container
from rljob_runtime.entrypoints.gateway_container import GatewayContainer
from rljob_runtime.entrypoints.pod_gateway import config_file, gateway_config
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.fault_detection.process_restarts import ProcessRestarts
from tests.support.api.jobs import job as job_document
from tests.support.waiting import until

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def ends(status: int) -> tuple[str, ...]:
    return (sys.executable, "-c", f"raise SystemExit({status})")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rljob-") as made:
        yield Path(made)


@pytest.fixture
def job() -> RLJob:
    return RLJob.model_validate(job_document())


def write_config(job: RLJob, folder: Path) -> None:
    """Do what the coordinator does when it serves."""
    config = gateway_config(job, folder, folder / "keys", "127.0.0.1")
    config_file(folder).write_text(json.dumps(config.to_dict()))


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[None]:
    """Stand in for the coordinator's end of the link."""
    (folder / "link").mkdir(exist_ok=True)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), folder / "link" / "link.sock")
    async with server:
        yield


@asynccontextmanager
async def running(container: GatewayContainer) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(container.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_dead_gateway_is_restarted_and_ends_with_the_coordinator(job: RLJob, folder: Path) -> None:
    container = GatewayContainer(config_file(folder), SLEEPS, asyncio.Event())
    async with running(container) as task:
        await asyncio.sleep(0.5)
        assert container.process.pid is None, "it waits for the coordinator"
        write_config(job, folder)
        await until(lambda: container.process.pid is not None)
        first = container.process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: container.process.pid not in (None, first))
        assert container.process.restarts.total == 1
        second = container.process.pid
        assert second is not None
        config_file(folder).unlink()
        assert await asyncio.wait_for(task, 60) == 0
        assert not alive(second)


async def test_asked_to_end_it_stays_until_the_coordinator_has_gone(job: RLJob, folder: Path) -> None:
    """Both containers of the pod are asked to end; the coordinator still stores turns."""
    asked = asyncio.Event()
    container = GatewayContainer(config_file(folder), SLEEPS, asked)
    async with AsyncExitStack() as coordinator:
        await coordinator.enter_async_context(listening(folder))
        write_config(job, folder)
        async with running(container) as task:
            await until(lambda: container.process.pid is not None)
            asked.set()
            await asyncio.sleep(1.0)
            assert not task.done()
            assert container.process.pid is not None
            await coordinator.aclose()
            assert await asyncio.wait_for(task, 60) == 0


async def test_a_wait_for_the_coordinator_that_fails_is_no_end_in_order(
    job: RLJob, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 0 the pod would go on without a gateway."""

    async def fails(socket: Path) -> bool:
        raise MemoryError

    asked = asyncio.Event()
    container = GatewayContainer(config_file(folder), SLEEPS, asked)
    monkeypatch.setattr(gateway_container, "_answered", fails)
    write_config(job, folder)
    async with running(container) as task:
        await until(lambda: container.process.pid is not None)
        gateway = container.process.pid
        asked.set()
        with pytest.raises(MemoryError):
            await asyncio.wait_for(task, 60)
        assert gateway is not None
        assert not alive(gateway)


async def test_asked_to_end_before_the_coordinator_serves_it_ends(folder: Path) -> None:
    asked = asyncio.Event()
    asked.set()
    assert await asyncio.wait_for(GatewayContainer(config_file(folder), SLEEPS, asked).run(), 60) == 0


@pytest.mark.parametrize(("status", "restarts"), [(1, 2), (2, 0)])
async def test_a_gateway_that_cannot_live_ends_the_container(
    job: RLJob, folder: Path, status: int, restarts: int
) -> None:
    """Status 2 says that another start gives the same."""
    write_config(job, folder)
    few = ProcessRestarts(Backoff(0.01, 2.0, 0.1, limit=3))
    container = GatewayContainer(config_file(folder), ends(status), asyncio.Event(), few)
    assert await asyncio.wait_for(container.run(), 60) == status
    assert container.process.restarts.total == restarts
