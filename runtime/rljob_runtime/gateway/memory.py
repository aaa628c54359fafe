"""Memory: the requests and the bytes that the gateway holds at a time, within one budget.

A body is read only when the request has a place and its bytes are granted. Until then its client waits, as it does
while engines load weights. The bytes stay counted until the answer has reached the client, so one that does not read
holds its own share only.

A client that waits too long may give up, and its agent may end without the answer. What the agent earns then says
nothing about the policy. So the attempts whose requests got no place are known here (`why_unserved`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.byte_budget import ByteBudget, Claim, Denial

Owner = EpisodeAttempt | str
"""Who holds bytes: an attempt, or the runners of an environment."""


@dataclass
class MemoryStats:
    """Totals of the budget."""

    memory_waits: int = 0
    """Requests that waited for a place or for bytes."""
    memory_refused: int = 0
    """Requests that were refused because of the number or the bytes of their attempt's."""
    memory_full: int = 0
    """Requests that were refused because of what all attempts hold."""


@dataclass(frozen=True)
class Sender:
    """The client of an agent's request. `retry`: whether it says that it sends the request again."""

    retry: bool
    has_left: Callable[[], bool]


class Room:
    """The granted bytes of one request."""

    def __init__(self, memory: Memory, claim: Claim[Owner], sender: Sender | None) -> None:
        self._memory = memory
        self._claim = claim
        self._asked = claim.amount
        self._sender = sender

    def holds(self, amount: int) -> None:
        """Count this number of bytes from now on."""
        self._memory.change(self._claim, amount)

    def answers(self) -> None:
        """Record that the answer is sent now, if its client is there."""
        if self._sender is not None and not self._sender.has_left():
            self._memory.answer(self._claim, self._asked, self._sender)


@dataclass(frozen=True)
class _Wait:
    """A request that has waited, until it is answered. `amount`: the bytes that it asked for."""

    granted: asyncio.Event
    amount: int
    is_agents: bool
    """Whether it waited for others of the same agent."""
    sender: Sender | None

    def is_lost(self, claim: Claim[Owner]) -> bool:
        """Tell whether the client has no answer because of others: it waits, or it left after it had waited."""
        return not self.is_agents and (not claim.granted or (self.sender is not None and self.sender.has_left()))


class Memory:
    """The budget of a gateway."""

    def __init__(self, budget: ByteBudget[Owner]) -> None:
        self.stats = MemoryStats()
        self._budget = budget
        self._waits: dict[Claim[Owner], _Wait] = {}
        self._unserved: dict[Owner, Counter[int]] = {}
        """Requests of agents that ended without an answer because of others, by their bytes. A retry has as many."""

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._budget.held

    @contextlib.asynccontextmanager
    async def room(
        self, owner: Owner, amount: int, seconds: float, sender: Sender | None = None
    ) -> AsyncIterator[Room]:
        """Wait until there is a place, and room for so many bytes, and hold both. Raises `GatewayError`.

        `sender`: of an agent's request. Its attempt has no reward if the request gets no answer because of others.
        """
        claim = self._budget.ask(owner, amount)
        if isinstance(claim, Denial):
            raise self._refusal(claim, owner, amount, sender)
        try:
            if not claim.granted:
                await self._granted(claim, seconds, sender)
            yield Room(self, claim, sender)
        finally:
            wait = self._waits.pop(claim, None)
            if wait is not None and sender is not None and claim.granted and wait.is_lost(claim):
                self._not_served(owner, amount, sender)
            self._wake(self._budget.release(claim))

    def change(self, claim: Claim[Owner], amount: int) -> None:
        """See `Room.holds`."""
        self._wake(self._budget.change(claim, amount))

    def answer(self, claim: Claim[Owner], amount: int, sender: Sender) -> None:
        """See `Room.answers`. A retry is the answer to the request before it too."""
        self._waits.pop(claim, None)
        if not sender.retry:
            return
        for other, wait in self._waits.items():
            if (other.owner, wait.amount) == (claim.owner, amount) and wait.is_lost(other):
                del self._waits[other]
                return
        counts = self._unserved.get(claim.owner)
        if counts is not None and counts[amount] > 0:
            counts[amount] -= 1

    def why_unserved(self, owner: Owner) -> str | None:
        """Return why the end of an attempt says nothing about its policy; None if all its requests had a place."""
        lost = sum(claim.owner == owner and wait.is_lost(claim) for claim, wait in self._waits.items())
        without = lost + sum(self._unserved.get(owner, {}).values())
        if not without:
            return None
        return f"the gateway had no place for {without} of its requests, because of those of other episodes"

    def forget(self, owner: Owner) -> None:
        """Forget an attempt that has ended."""
        self._unserved.pop(owner, None)

    async def _granted(self, claim: Claim[Owner], seconds: float, sender: Sender | None) -> None:
        """Wait for a claim."""
        self.stats.memory_waits += 1
        is_agents = self._budget.waits_for_own(claim)
        wait = self._waits[claim] = _Wait(asyncio.Event(), claim.amount, is_agents, sender)
        try:
            async with asyncio.timeout(seconds):
                await wait.granted.wait()
        except TimeoutError as error:
            if not is_agents:
                raise self._full(claim.owner, claim.amount, sender) from error
            self.stats.memory_refused += 1
            text = f"the other requests of this attempt took its share of {self._budget.share} bytes all the time"
            raise GatewayError(429, "too_many_requests", text) from error

    def _refusal(self, denial: Denial, owner: Owner, amount: int, sender: Sender | None) -> GatewayError:
        if denial is Denial.QUEUE:
            return self._full(owner, amount, sender)
        self.stats.memory_refused += 1
        who = "this attempt" if isinstance(owner, EpisodeAttempt) else "this environment"
        if denial is Denial.SHARE:
            return GatewayError(
                413, "request_too_large", f"the request has {amount} bytes; {who} may have {self._budget.share}"
            )
        why = ". Its agent sends them concurrently; send fewer" if isinstance(owner, EpisodeAttempt) else ""
        text = f"{who} has {self._budget.claims} requests under way or waiting, and may have no more{why}"
        return GatewayError(429, "too_many_requests", text)

    def _full(self, owner: Owner, amount: int, sender: Sender | None) -> GatewayError:
        """Return the refusal of a request for which others leave no place."""
        self.stats.memory_full += 1
        if sender is not None:
            self._not_served(owner, amount, sender)
        places = "" if self._budget.places is None else f"{self._budget.places} requests and "
        text = f"all episodes together take the gateway's {places}{self._budget.total} bytes; try again"
        return GatewayError(503, "gateway_full", text)

    def _not_served(self, owner: Owner, amount: int, sender: Sender) -> None:
        """Count a request without a place. A retry is counted already, unless it was another failure before."""
        counts = self._unserved.setdefault(owner, Counter())
        counts[amount] = max(1, counts[amount]) if sender.retry else counts[amount] + 1

    def _wake(self, granted: list[Claim[Owner]]) -> None:
        for claim in granted:
            if (wait := self._waits.get(claim)) is not None:
                wait.granted.set()
