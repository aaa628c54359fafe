"""Ray's head in a container of its own (`python -m rljob_runtime.entrypoints head`), and how the coordinator has it
run.

Two files that both containers see, each locked by one of them. The coordinator's says that it wants a head, the head's
that there is one. The kernel lets go of a lock with its process, however that ends, so neither asks the other whether
it lives. Each lock has a new name: a coordinator that starts over wants another head, and a head that the kubelet
started again is not the one that a driver was connected to.

Who has the job's Ray token may write what it likes into that folder. So no file there is opened through a link or
waited for, and a name is taken for nothing else.
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
"""By it the head has the id that its lock tells: a driver in another container cannot look for it among processes."""

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK
_TRIES = 100
_TRY_SECONDS = 0.01
"""A lock may be held by whoever just looks who holds it."""
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
    """Read the text of the lock; None when nobody holds it, or it is no file."""
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


class Place:
    """The folder that the two containers share: Ray's own."""

    def __init__(self, folder: Path = Path(RAY_DIR)) -> None:
        self.wanted = folder / "rljob-wanted"
        self.head = folder / "rljob-head"
        self.session = folder / "session_latest"
        self.raylet = self.session / "sockets/raylet"


async def run(pod_ip: str, place: Place | None = None, command: Callable[[str], list[str]] = head_command) -> int:
    """Be the head whenever the coordinator wants one, until cancelled. Raises `NodeEnded` when Ray ends by itself."""
    place = place or Place()
    while True:
        wanted = holder(place.wanted)
        if wanted is not None:
            await _serve(wanted, place, command(pod_ip))
        await asyncio.sleep(POLL_SECONDS)


async def _serve(wanted: str, place: Place, command: list[str]) -> None:
    """Be the head for one coordinator, until that wants none any more."""
    # What an earlier head left: the coordinator would take its socket for this one's.
    place.session.unlink(missing_ok=True)
    node_id = secrets.token_hex(28)
    with held(place.head, f"{wanted} {node_id}"):
        node = RayNode(command, {**os.environ, NODE_ID: node_id})
        ray = asyncio.create_task(node.run(), name="ray's head")
        try:
            while holder(place.wanted) == wanted:
                await asyncio.wait({ray}, timeout=POLL_SECONDS)
                if ray.done():
                    raise NodeEnded(f"ray ended with {ray.result()}")
        finally:
            ray.cancel()
            await asyncio.gather(ray, return_exceptions=True)
    log.info("the coordinator wants no head any more")


class HeadApart:
    """The head in the other container, as the coordinator sees it."""

    def __init__(self, place: Place | None = None) -> None:
        self._place = place or Place()
        self._head: str | None = None
        self.node_id = ""
        """Of its raylet, once it is `up`."""

    @property
    def up(self) -> bool:
        """Whether the head that was made for us lives."""
        return self._head is not None and holder(self._place.head) == self._head

    @property
    def joined(self) -> bool:
        """Whether it lives and its raylet is part of the cluster."""
        return self.up and self._place.raylet.exists()

    async def run(self) -> None:
        """Have it started and wait for its end. When cancelled, it is ended first. Who needs it bounds the wait for its
        start."""
        name = secrets.token_hex(16)
        try:
            with held(self._place.wanted, name):
                while self._head is None:
                    await asyncio.sleep(POLL_SECONDS)
                    found = _HEAD.fullmatch(holder(self._place.head) or "")
                    if found is not None and found["wanted"] == name:
                        self._head, self.node_id = found[0], found["node"]
                await self._while_up()
        finally:
            await asyncio.shield(self._ended())

    async def _ended(self) -> None:
        """Nobody wants the head any more: wait until it has let go of its tables."""
        try:
            async with asyncio.timeout(2 * STOP_SECONDS):
                await self._while_up()
        except TimeoutError:
            log.warning("ray's head did not end within %g s", 2 * STOP_SECONDS)

    async def _while_up(self) -> None:
        while self.up:  # noqa: ASYNC110 - of another process's lock nobody tells
            await asyncio.sleep(POLL_SECONDS)
