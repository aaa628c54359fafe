"""Coordinator lives: the coordinators of a run that are alive, the faults of their pods, and how each ended."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from pathlib import Path

from rljob_api.status import Finished
from rljob_runtime.coordinator.control_plane.lease import LeaseLost
from rljob_runtime.protocols import StaleTerm
from rljob_runtime.simulator.core.network import CoordinatorIncarnation, FaultKind
from rljob_runtime.simulator.faults.injector import CoordinatorHost
from rljob_runtime.simulator.peers.observed_store import ObservedStore, is_full_disk


class CoordinatorLives:
    """Coordinators that are alive, with their open stores."""

    def __init__(self, host: CoordinatorHost) -> None:
        self._host = host
        self._stores: dict[CoordinatorIncarnation, ObservedStore | None] = {}

    def begun(self, life: CoordinatorIncarnation) -> None:
        """Add a coordinator that has no store yet."""
        self._stores[life] = None

    def opened(self, life: CoordinatorIncarnation, store: ObservedStore) -> None:
        """Record a coordinator's store."""
        self._stores[life] = store
        self.apply_faults()

    def ended(self, life: CoordinatorIncarnation) -> None:
        """Remove a coordinator."""
        self._stores.pop(life, None)

    def apply_faults(self) -> None:
        """Apply a pod's faults to the coordinators in it."""
        for life, store in self._stores.items():
            if store is not None:
                store.fill_disk(self._host.full_disk > 0)
            if FaultKind.FROZEN not in life.condition:
                life.mail.go_on()


@dataclass(frozen=True)
class CoordinatorEnd:
    """End of one coordinator. `finished`: the job's end, if it reported one."""

    finished: Finished | None
    why: str
    fault: str | None = None
    """Set if it died of what no fault explains."""


KILLED = CoordinatorEnd(None, "killed")


def end_of(work: asyncio.Task[Finished | None]) -> CoordinatorEnd:
    """Return how a coordinator ended whose task is done."""
    error = work.exception()
    if error is None:
        finished = work.result()
        return CoordinatorEnd(finished, "left" if finished is None else "finished")
    if isinstance(error, LeaseLost):
        return CoordinatorEnd(None, "lost its Lease")
    if isinstance(error, StaleTerm):
        return CoordinatorEnd(None, "met a later term")
    if is_full_disk(error):
        return CoordinatorEnd(None, repr(error))
    where = traceback.extract_tb(error.__traceback__)[-1]
    return CoordinatorEnd(None, repr(error), f"it died of {error!r} in {where.name}, {Path(where.filename).name}")
