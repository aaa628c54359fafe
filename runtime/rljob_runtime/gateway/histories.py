"""Histories: the paths of attempts that this process has, and the reads of those that it lacks.

An attempt is lacking if it is new, if the gateway started after its turns, or if its paths were dropped because others
took the bytes. All requests of an attempt wait for one read, and few attempts are read at a time: the turns of an
attempt are much larger than its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rljob_runtime.gateway.capability import Capability
from rljob_runtime.gateway.paths import AttemptPaths, Paths
from rljob_runtime.protocols.turns import EpisodeAttempt

MOST_READS = 2
"""Attempts whose turns are read from the coordinator at a time."""


@dataclass
class HistoryStats:
    """Totals of the histories."""

    history_misses: int = 0
    """Requests whose attempt had no paths here. The first one of each attempt is one."""
    history_rereads: int = 0
    """Histories with turns that were read: the gateway is new, or others took the bytes."""


class Histories:
    """The paths of one gateway, in `most` bytes. `read`: reads those of an attempt; raises `GatewayError`."""

    def __init__(self, most: int, read: Callable[[Capability], Awaitable[Paths]]) -> None:
        self.stats = HistoryStats()
        self._read = read
        self._paths = AttemptPaths(most)
        self._readings: dict[EpisodeAttempt, asyncio.Task[Paths]] = {}
        self._places = asyncio.Semaphore(MOST_READS)
        self._outdated: set[EpisodeAttempt] = set()
        """Attempts of which a turn was answered while they were read."""

    async def of(self, capability: Capability) -> Paths:
        """Return the paths of an attempt. Raises `GatewayError`."""
        episode = capability.episode
        if (paths := self._paths.get(episode)) is not None:
            return paths
        self.stats.history_misses += 1
        if (reading := self._readings.get(episode)) is None:
            reading = self._readings[episode] = asyncio.create_task(self._reading(capability))
            reading.add_done_callback(lambda _: self._readings.pop(episode))
        return await asyncio.shield(reading)

    def kept(self, episode: EpisodeAttempt) -> Paths | None:
        """Return the paths to which an answered turn is added; None if they were dropped while it was under way.

        No request holds them while it waits for its turn, so that what is dropped is free.
        """
        paths = self._paths.get(episode)
        if paths is None and episode in self._readings:
            self._outdated.add(episode)
        return paths

    def measure(self, episode: EpisodeAttempt) -> None:
        """Count the bytes of an attempt that may have grown."""
        self._paths.measure(episode)

    def forget(self, episode: EpisodeAttempt) -> None:
        """Drop what is kept of an attempt that has ended."""
        self._paths.forget(episode)

    async def close(self) -> None:
        """End all reads."""
        tasks = list(self._readings.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reading(self, capability: Capability) -> Paths:
        episode = capability.episode
        async with self._places:
            while True:
                self._outdated.discard(episode)
                paths = await self._read(capability)
                self.stats.history_rereads += bool(paths.turns)
                # Without its newest turn, a request that goes on from that would begin another branch.
                if episode not in self._outdated:
                    return self._paths.put(episode, paths)


MOST_ATTEMPTS = 1 << 16
"""Attempts that are remembered. The oldest is forgotten first: it may have ended without a report."""


class ContextLimit:
    """Attempts whose newest request did not fit into the model's context.

    The coordinator does not know of such a request. Its client may shorten the messages and go on. If it ends instead,
    the limit of tokens has ended the episode, and not its agent.
    """

    def __init__(self) -> None:
        self._refused: dict[EpisodeAttempt, None] = {}

    def refuse(self, episode: EpisodeAttempt) -> None:
        """Record that a request of an attempt was too long."""
        self.forget(episode)
        self._refused[episode] = None
        if len(self._refused) > MOST_ATTEMPTS:
            del self._refused[next(iter(self._refused))]

    def has_ended(self, episode: EpisodeAttempt) -> bool:
        """Return whether an attempt that ends now was ended by its context."""
        return episode in self._refused

    def forget(self, episode: EpisodeAttempt) -> None:
        """Forget an attempt: its newest request fits, so that it goes on, or it has ended."""
        self._refused.pop(episode, None)
