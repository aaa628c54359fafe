"""Work on texts that a model wrote, outside of the event loop.

One thread for all of it: the interpreter takes turns among threads, and the loop has every other turn at the least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

Given = TypeVarTuple("Given")
T = TypeVar("T")

_texts = ThreadPoolExecutor(max_workers=1, thread_name_prefix="texts")


async def aside(work: Callable[[*Given], T], *given: *Given) -> T:
    """What the work returns or raises. It waits for its turn; one that was begun goes on when the call is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(_texts, work, *given)
