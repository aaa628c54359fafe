"""Journal: writes what happens in episodes to the store, in order.

An event has effects only after it is stored: a client receives no turn, and training no token, that a restarted
coordinator would not know. A caller that waits for an event may be cancelled; the event is not.

Events that wait are stored in one transaction. The disk takes about a millisecond for each, and many episodes end a
turn together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry:
    save: Callable[[Store], Any]
    then: Callable[[Any], None]


class Journal:
    """The events of all episodes of a coordinator. `run` until cancelled."""

    def __init__(self, store: StoreAccess) -> None:
        self._store = store
        self._entries: list[_Entry] = []
        self._wake = asyncio.Event()
        self.trips = 0
        """Calls of the store so far, each with all events that waited."""

    def write(self, save: Callable[[Store], T], then: Callable[[T], None]) -> None:
        """Have `save` called with the store, then `then` with its result, both after those of earlier events."""
        self._entries.append(_Entry(save, then))
        self._wake.set()

    async def written(self, save: Callable[[Store], T], then: Callable[[T], None] = lambda result: None) -> T:
        """Write, and wait until `then` was called; return what `save` returned."""
        results: list[T] = []
        done = asyncio.Event()

        def both(result: T) -> None:
            then(result)
            results.append(result)
            done.set()

        self.write(save, both)
        await done.wait()
        return results[0]

    async def run(self) -> None:
        """Write until cancelled. Raises what the store raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            entries, self._entries = self._entries, []
            saves = [entry.save for entry in entries]
            results = await self._store.do(partial(_all, saves))
            self.trips += 1
            for entry, result in zip(entries, results, strict=True):
                entry.then(result)


def _all(saves: Sequence[Callable[[Store], Any]], store: Store) -> list[Any]:
    with store.together():
        return [save(store) for save in saves]
