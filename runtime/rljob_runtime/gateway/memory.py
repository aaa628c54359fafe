"""Memory: the bytes of requests and answers that the gateway holds at a time, within one budget.

A body is read only when its bytes are granted; until then its client waits, as it does while engines load weights. The
bytes stay counted until the answer has reached the client, so one that does not read holds its own share only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.byte_budget import ByteBudget, Claim

Owner = EpisodeAttempt | str
"""Who holds bytes: an attempt, or the runners of an environment."""
HELD_BYTES = 128 << 20
"""Bodies and answers that are held at a time. A body is in memory up to seven times: as bytes here, in a frame of the
link and in its buffer, and as text, whose characters may have four bytes each."""


@dataclass
class MemoryStats:
    """Totals of the budget."""

    memory_waits: int = 0
    """Requests that waited until others held less."""
    memory_refused: int = 0
    """Requests that were refused because of the bytes or the number of their attempt's."""


class Room:
    """The granted bytes of one request."""

    def __init__(self, memory: Memory, claim: Claim[Owner]) -> None:
        self._memory = memory
        self._claim = claim

    def holds(self, amount: int) -> None:
        """Count this number of bytes from now on."""
        self._memory.change(self._claim, amount)


class Memory:
    """The budget of a gateway."""

    def __init__(self, budget: ByteBudget[Owner]) -> None:
        self.stats = MemoryStats()
        self._budget = budget
        self._waiting: dict[Claim[Owner], asyncio.Event] = {}

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._budget.held

    @contextlib.asynccontextmanager
    async def room(self, owner: Owner, amount: int, seconds: float) -> AsyncIterator[Room]:
        """Wait until there is room for so many bytes, and hold it. Raises `GatewayError`."""
        claim = self._budget.ask(owner, amount)
        if claim is None:
            self.stats.memory_refused += 1
            who = "an attempt" if isinstance(owner, EpisodeAttempt) else "an environment"
            text = f"{who} has at most {self._budget.claims} requests at a time, of {self._budget.share} bytes"
            raise GatewayError(429, "too_many_requests", text)
        try:
            await self._granted(claim, seconds)
            yield Room(self, claim)
        finally:
            self._wake(self._budget.release(claim))

    def change(self, claim: Claim[Owner], amount: int) -> None:
        """See `Room.holds`."""
        self._wake(self._budget.change(claim, amount))

    async def _granted(self, claim: Claim[Owner], seconds: float) -> None:
        if claim.granted:
            return
        self.stats.memory_waits += 1
        event = self._waiting[claim] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError as error:
            self.stats.memory_refused += 1
            raise GatewayError(503, "memory_full", "the gateway holds as many requests as it may; try again") from error
        finally:
            del self._waiting[claim]

    def _wake(self, granted: list[Claim[Owner]]) -> None:
        for claim in granted:
            if (event := self._waiting.get(claim)) is not None:
                event.set()
