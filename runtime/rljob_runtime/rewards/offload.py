"""Offload: runs work on a model's texts outside of the event loop.

One thread does all of it: the interpreter switches between threads, so the loop gets at least every other turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

Given = TypeVarTuple("Given")
T = TypeVar("T")

_texts = ThreadPoolExecutor(max_workers=1, thread_name_prefix="texts")


async def offload(work: Callable[[*Given], T], *given: *Given) -> T:
    """Run `work` in the thread and return its result.

    Work waits for its turn. Work that has begun continues when the call is cancelled.
    """
    return await asyncio.get_running_loop().run_in_executor(_texts, work, *given)
