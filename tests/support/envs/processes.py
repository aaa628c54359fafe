"""Processes: whether those of another process still live."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


async def gone(pids: list[int]) -> None:
    """Wait until processes have ended. Those without a parent are zombies until one takes them."""
    async with asyncio.timeout(30):
        while any(lives(pid) for pid in pids):  # noqa: ASYNC110, the processes are no children of this one
            await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
