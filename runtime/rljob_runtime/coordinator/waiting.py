"""Waiting for news, with an end to it."""

from __future__ import annotations

import asyncio


async def news(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until `event` is set, at most `seconds` (None: for ever), and clear it. False when it did not come."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
