"""Local rank: a trainer rank or a gradient worker in a thread of this process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rljob_runtime.training.loans.worker import BlockingGradientWorker
from rljob_runtime.training.ranks.rank import TrainerRank


class LocalRank:
    """A rank in its own thread."""

    def __init__(self, rank: TrainerRank | BlockingGradientWorker, host: str = "127.0.0.1"):
        self.host = host
        self._rank = rank
        name = f"trainer-{rank.rank}" if isinstance(rank, TrainerRank) else f"worker-{rank.name}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Run a method in the rank's thread.

        A cancelled call continues, and the next call waits for it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, getattr(self._rank, method), *arguments)

    async def put(self, value: Any) -> Any:
        """Return `value`, which this process holds already."""
        return value

    async def close(self) -> None:
        """End the rank and its thread."""
        await self.call("close")
        self._thread.shutdown()
