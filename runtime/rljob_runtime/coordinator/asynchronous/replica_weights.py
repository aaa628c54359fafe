"""Replica weights: tracks each replica's version and lets idle replicas load newer ones (Laminar §4).

Weights come from the relay of the replica's machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.protocols import PeerError, Refused, Replica, StaleTerm, WrongVersion
from rljob_runtime.scheduling.asynchronous.replica_assignment import exceeds_refusals, load_delay, next_version

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightsLoaded:
    """The end of a load; `version` is None if it failed."""

    replica: Replica
    version: int | None
    error: PeerError | None = None


@dataclass
class _ReplicaState:
    replica: Replica
    version: int | None = None
    known: bool = False
    load: asyncio.Task[None] | None = None
    refusals: int = 0


class ReplicaWeights:
    """Weights of all replicas.

    `post` receives the end of each load. `known`: whether a version belongs to this history: versions of a lost store
    are ignored."""

    def __init__(
        self, fleet: Fleet, term: int, post: Callable[[WeightsLoaded | Broken], None], known: Callable[[int], bool]
    ) -> None:
        self._fleet = fleet
        self._known = known
        self._term = term
        self._post = post
        self._replicas: dict[str, _ReplicaState] = {}
        self._loads = StageTasks(post)

    @property
    def settled(self) -> bool:
        """Whether there are replicas, and the version of each is known."""
        return bool(self._replicas) and all(state.known and state.load is None for state in self._replicas.values())

    def held_versions(self) -> dict[str, int]:
        """Return the version of each replica that can generate now."""
        return {
            name: state.version
            for name, state in self._replicas.items()
            if state.version is not None and state.load is None
        }

    def available_versions(self) -> set[int]:
        """Return the versions that a replica holds or can load."""
        versions = (machine.complete_version for machine in self._fleet.joined.values())
        return {
            version
            for version in (*self.held_versions().values(), *versions, self._fleet.weights.version)
            if version is not None
        }

    def track(self, present: Iterable[Replica]) -> None:
        """Follow the replicas that are present; a new one has not reported its version yet."""
        now = {replica.name: replica for replica in present}
        for name, state in list(self._replicas.items()):
            if now.get(name) is not state.replica:
                del self._replicas[name]
                if state.load is not None:
                    state.load.cancel()
        for name, replica in now.items():
            self._replicas.setdefault(name, _ReplicaState(replica))

    def record_version(self, replica: Replica, version: int | None) -> None:
        """Record the version that a replica reports."""
        state = self._replicas.get(replica.name)
        if state is not None and state.replica is replica and not state.known:
            state.version, state.known = version if version is not None and self._known(version) else None, True

    def next_version(self, name: str) -> int | None:
        """Return the version that an idle replica should load; None if it has its machine's newest one."""
        state, machine = self._replicas.get(name), self._fleet.joined.get(machine_of(name))
        whole = machine.complete_version if machine is not None else None
        if state is None or not state.known or state.load is not None or whole is None or not self._known(whole):
            return None
        return next_version(state.version, whole)

    def load(self, name: str, version: int) -> None:
        """Let a replica load this version, or a newer one that its relay has by then.

        It generates nothing meanwhile."""
        state = self._replicas[name]
        state.version = None
        pause = load_delay(state.refusals)
        state.load = self._loads.start(self._load(state.replica, version, pause), name=f"load-{name}")

    def finish_load(self, loaded: WeightsLoaded) -> None:
        """Record the end of a load. Raises the error if a later coordinator was seen."""
        state = self._replicas.get(loaded.replica.name)
        if state is None or state.replica is not loaded.replica:
            return
        state.load = None
        if loaded.version is not None:
            state.version = loaded.version if self._known(loaded.version) else None
            state.refusals = 0
            return
        if isinstance(loaded.error, StaleTerm):
            raise loaded.error
        state.refusals += 1
        if not isinstance(loaded.error, Refused | WrongVersion) or exceeds_refusals(state.refusals):
            self._fleet.mark_replica_lost(state.replica, "WeightsNotLoaded", loaded.error)

    async def close(self) -> None:
        """Cancel all loads."""
        self._replicas = {}
        await self._loads.close()

    async def _load(self, replica: Replica, version: int, pause: float) -> None:
        await asyncio.sleep(pause)
        try:
            with self._fleet.timeline.during(replica.name, "load", version=version):
                loaded = await replica.load(self._term, version)
        except PeerError as error:
            log.info("%s has not taken version %d: %s", replica.name, version, error)
            self._post(WeightsLoaded(replica, None, error))
        else:
            self._post(WeightsLoaded(replica, loaded))
