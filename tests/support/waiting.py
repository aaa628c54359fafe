"""Waiting for what has no event: a condition is asked again until it holds, up to a generous time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

ENOUGH = 60.0
"""Seconds that no condition of a unit test needs, even on a loaded machine."""


async def until(condition: Callable[[], Any], seconds: float = ENOUGH, tick: float = 0.005) -> None:
    """Return when the condition holds. Fails with the condition's source after `seconds`; asks every `tick` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(tick)
