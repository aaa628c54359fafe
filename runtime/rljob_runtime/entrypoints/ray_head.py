"""Ray head: runs in its own container (`python -m rljob_runtime.entrypoints head`) on request of the coordinator.

Both containers share two files, each locked by one of them. The coordinator's lock requests a head; the head's lock
shows that one runs. The kernel releases a lock when its process ends in any way, so neither side has to check whether
the other lives. Each lock has a new name: a restarted coordinator requests a new head, and a head restarted by the
kubelet differs from the one that a driver is connected to.

A process with the job's Ray token can write any file into that folder. Therefore no file there is opened through a link
or waited for, and a name is used only as a name.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_api.constants import RAY_DIR
from rljob_runtime.entrypoints.ray_node import STOP_SECONDS, NodeEnded, RayNode, head_command

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
NODE_ID = "RAY_OVERRIDE_NODE_ID_FOR_TESTING"
"""Sets the head's node id to the one in its lock: a driver in another container cannot find it among its processes."""

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK
_TRIES = 100
_TRY_SECONDS = 0.01
"""A reader holds the lock for a very short time."""
_LONGEST = 256
_HEAD = re.compile(r"(?P<wanted>[0-9a-f]{32}) (?P<node>[0-9a-f]{56})")


class LockTaken(Exception):
    """Another process holds the lock."""


@contextmanager
def held(path: Path, text: str) -> Iterator[None]:
    """Hold the lock, with this text in its file, while the context is open. Raises `LockTaken`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, text.encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == _TRIES:
                raise LockTaken(f"{path} is held by another process") from None
            time.sleep(_TRY_SECONDS)


def holder(path: Path) -> str | None:
    """Read the text of the lock; None if no process holds it or it is not a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _SAFELY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, _LONGEST).decode(errors="replace") or None
    finally:
        os.close(descriptor)
    return None


class HeadFolder:
    """Ray's folder, which the two containers share."""

    def __init__(self, folder: Path = Path(RAY_DIR)) -> None:
        self.wanted = folder / "rljob-wanted"
        self.head = folder / "rljob-head"
        self.session = folder / "session_latest"
        self.raylet = self.session / "sockets/raylet"


async def run(pod_ip: str, folder: HeadFolder | None = None, command: Callable[[str], list[str]] = head_command) -> int:
    """Run a head whenever the coordinator requests one, until cancelled. Raises `NodeEnded` if Ray ends on its own."""
    folder = folder or HeadFolder()
    while True:
        wanted = holder(folder.wanted)
        if wanted is not None:
            await _serve(wanted, folder, command(pod_ip))
        await asyncio.sleep(POLL_SECONDS)


async def _serve(wanted: str, folder: HeadFolder, command: list[str]) -> None:
    """Run the head for one coordinator until it no longer requests one."""
    # The coordinator would take the socket of an earlier head for this head's.
    folder.session.unlink(missing_ok=True)
    node_id = secrets.token_hex(28)
    with held(folder.head, f"{wanted} {node_id}"):
        node = RayNode(command, {**os.environ, NODE_ID: node_id})
        ray = asyncio.create_task(node.run(), name="ray's head")
        try:
            while holder(folder.wanted) == wanted:
                await asyncio.wait({ray}, timeout=POLL_SECONDS)
                if ray.done():
                    raise NodeEnded(f"ray ended with {ray.result()}")
        finally:
            ray.cancel()
            await asyncio.gather(ray, return_exceptions=True)
    log.info("the coordinator no longer requests a head")


class HeadClient:
    """Client of the head in the other container."""

    def __init__(self, folder: HeadFolder | None = None) -> None:
        self._folder = folder or HeadFolder()
        self._head: str | None = None
        self.node_id = ""
        """Node id of the head's raylet, once it is `up`."""

    @property
    def up(self) -> bool:
        """True while the head that serves this request lives."""
        return self._head is not None and holder(self._folder.head) == self._head

    @property
    def joined(self) -> bool:
        """True while the head lives and its raylet is part of the cluster."""
        return self.up and self._folder.raylet.exists()

    async def run(self) -> None:
        """Request a head and wait for its end. If cancelled, the head is ended first.

        The caller bounds the wait for the head's start.
        """
        name = secrets.token_hex(16)
        try:
            with held(self._folder.wanted, name):
                while self._head is None:
                    await asyncio.sleep(POLL_SECONDS)
                    found = _HEAD.fullmatch(holder(self._folder.head) or "")
                    if found is not None and found["wanted"] == name:
                        self._head, self.node_id = found[0], found["node"]
                await self._while_up()
        finally:
            await asyncio.shield(self._ended())

    async def _ended(self) -> None:
        """Wait until the head, which is no longer requested, has released its tables."""
        try:
            async with asyncio.timeout(2 * STOP_SECONDS):
                await self._while_up()
        except TimeoutError:
            log.warning("ray's head did not end within %g s", 2 * STOP_SECONDS)

    async def _while_up(self) -> None:
        while self.up:  # noqa: ASYNC110 - another process's lock sends no event
            await asyncio.sleep(POLL_SECONDS)
