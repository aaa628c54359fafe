"""Ray's head in its own container: it runs while a coordinator wants it, and each notices how the other ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rljob_runtime.entrypoints.ray_head import HeadClient, HeadFolder, LockTaken, held, holder, run
from rljob_runtime.entrypoints.ray_node import NodeEnded
from tests.support.waiting import until


def _hold(path: Path, text: str, ready: multiprocessing.synchronize.Event) -> None:
    with held(path, text):
        ready.set()
        signal.pause()


@contextlib.asynccontextmanager
async def container(folder: HeadFolder, script: str = "sleep 1000") -> AsyncIterator[asyncio.Task[int]]:
    """The head's container, with a program in the folder of Ray."""
    task = asyncio.create_task(run("10.0.0.7", folder, lambda ip: ["bash", "-c", f"echo {ip}; {script}"]))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def coordinator(head: HeadClient) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(head.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_lock_goes_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(path, "me", ready))
    process.start()
    try:
        assert ready.wait(60)
        assert holder(path) == "me"
        with pytest.raises(LockTaken, match="another process"), held(path, "you"):
            pass
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
        assert holder(path) is None, "the text is still there, the lock is not"
    finally:
        process.kill()


def test_a_reader_of_a_lock_blocks_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)  # as `holder` does for a moment
        moment = threading.Timer(0.2, fcntl.flock, (looker, fcntl.LOCK_UN))
        moment.start()
        with held(path, "me"):
            assert holder(path) == "me"
        moment.join()


def test_nothing_of_the_coordinators_is_written_through_a_link(tmp_path: Path) -> None:
    """A client that may start a process on the head may write into the folder that both containers see."""
    store, folder = tmp_path / "store.db", HeadFolder(tmp_path)
    store.write_text("rounds")
    folder.wanted.symlink_to(store)
    folder.head.symlink_to(store)
    with pytest.raises(OSError, match="symbolic links"), held(folder.wanted, "me"):
        pass
    assert holder(folder.head) is None
    assert store.read_text() == "rounds"


def test_no_pipe_is_waited_for(tmp_path: Path) -> None:
    folder = HeadFolder(tmp_path)
    os.mkfifo(folder.head)
    assert holder(folder.head) is None


async def test_a_name_that_is_none_is_no_head(tmp_path: Path) -> None:
    folder = HeadFolder(tmp_path)
    head = HeadClient(folder)
    async with coordinator(head):
        await until(lambda: holder(folder.wanted) is not None)
        wanted = holder(folder.wanted)
        with held(folder.head, f"{wanted} --address=elsewhere"):
            await asyncio.sleep(0.5)
            assert not head.up
        with held(folder.head, f"{'f' * 32} {'0' * 56}"):
            await asyncio.sleep(0.5)
            assert not head.up, "made for another coordinator"
        with held(folder.head, f"{wanted} {'0' * 56}"):
            await until(lambda: head.up)
            assert head.node_id == "0" * 56


async def test_no_head_runs_before_a_coordinator_wants_one_nor_after(tmp_path: Path) -> None:
    folder = HeadFolder(tmp_path)
    async with container(folder):
        await asyncio.sleep(0.5)
        assert holder(folder.head) is None
        head = HeadClient(folder)
        async with coordinator(head):
            await until(lambda: head.up)
            assert not head.joined, "no raylet yet"
            folder.raylet.parent.mkdir(parents=True)
            folder.raylet.touch()
            assert head.joined
        assert holder(folder.head) is None, "its tables are free when the coordinator has ended"
        assert not head.up


async def test_a_coordinator_that_starts_over_gets_another_head(tmp_path: Path) -> None:
    folder = HeadFolder(tmp_path)
    async with container(folder):
        first, second = HeadClient(folder), HeadClient(folder)
        async with coordinator(first):
            await until(lambda: first.up)
            one = holder(folder.head)
        async with coordinator(second):
            await until(lambda: second.up)
            assert holder(folder.head) != one
            assert not first.up


async def test_the_coordinator_notices_the_end_of_its_head(tmp_path: Path) -> None:
    folder, head = HeadFolder(tmp_path), HeadClient(HeadFolder(tmp_path))
    async with container(folder, "sleep 1; exit 7") as ray, coordinator(head) as driver:
        await until(lambda: head.up)
        await asyncio.wait_for(driver, 20)
        with pytest.raises(NodeEnded, match="ray ended with 7"):
            await ray


async def test_a_head_that_was_started_again_is_another_one(tmp_path: Path) -> None:
    folder, head = HeadFolder(tmp_path), HeadClient(HeadFolder(tmp_path))
    async with coordinator(head) as driver:
        async with container(folder):
            await until(lambda: head.up)
        async with container(folder):
            await asyncio.wait_for(driver, 20)
            assert not head.up


async def test_what_an_earlier_head_left_is_no_raylet(tmp_path: Path) -> None:
    folder, head = HeadFolder(tmp_path), HeadClient(HeadFolder(tmp_path))
    old = tmp_path / "session_old"
    (old / "sockets").mkdir(parents=True)
    (old / "sockets/raylet").touch()
    folder.session.symlink_to(old)
    async with container(folder), coordinator(head):
        await until(lambda: head.up)
        assert not head.joined
