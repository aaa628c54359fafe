"""Which replica holds which weights, where each takes them for itself from its machine's relay (Laminar, section 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.protocols import PeerError, Refused, Replica, StaleTerm, WrongVersion

log = logging.getLogger(__name__)

MOST_REFUSALS = 5
"""Loads in a row that a replica refuses, before its machine is lost."""
REFUSAL_SECONDS = 0.5
"""For each of them it is given so long: it may still end what nobody asks it for any more."""


@dataclass(frozen=True)
class WeightsLoaded:
    """A load has ended: `version` is None where it failed."""

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
    """`post` is told when a load has ended. `known`: whether a version is of this history: what a store that was lost
    had published is nobody's weights."""

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
        """Whether there are replicas, and it is known of all of them what they hold."""
        return bool(self._replicas) and all(state.known and state.load is None for state in self._replicas.values())

    def held_versions(self) -> dict[str, int]:
        """Replicas that can generate now, with their versions."""
        return {
            name: state.version
            for name, state in self._replicas.items()
            if state.version is not None and state.load is None
        }

    def available_versions(self) -> set[int]:
        """Versions that a replica holds, or will be able to take."""
        versions = (machine.whole for machine in self._fleet.seated.values())
        return {
            version
            for version in (*self.held_versions().values(), *versions, self._fleet.version)
            if version is not None
        }

    def track(self, present: Iterable[Replica]) -> None:
        """These are here; what is new among them has not yet said what it holds."""
        now = {replica.name: replica for replica in present}
        for name, state in list(self._replicas.items()):
            if now.get(name) is not state.replica:
                del self._replicas[name]
                if state.load is not None:
                    state.load.cancel()
        for name, replica in now.items():
            self._replicas.setdefault(name, _ReplicaState(replica))

    def record_version(self, replica: Replica, version: int | None) -> None:
        """A replica says what it holds."""
        state = self._replicas.get(replica.name)
        if state is not None and state.replica is replica and not state.known:
            state.version, state.known = version if version is not None and self._known(version) else None, True

    def next_version(self, name: str) -> int | None:
        """The version that an idle replica should take: its machine's newest, if it holds another one."""
        state, machine = self._replicas.get(name), self._fleet.seated.get(machine_of(name))
        whole = machine.whole if machine is not None else None
        if state is None or not state.known or state.load is not None or whole is None or not self._known(whole):
            return None
        return whole if state.version is None or whole > state.version else None

    def load(self, name: str, version: int) -> None:
        """Have it load this version, or a newer one that its relay has by then. It generates nothing meanwhile."""
        state = self._replicas[name]
        state.version = None
        pause = REFUSAL_SECONDS * state.refusals
        state.load = self._loads.start(self._load(state.replica, version, pause), name=f"load-{name}")

    def finish_load(self, loaded: WeightsLoaded) -> None:
        """A load has ended. Raises the error of a coordinator that is out of office."""
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
        if not isinstance(loaded.error, Refused | WrongVersion) or state.refusals > MOST_REFUSALS:
            self._fleet.lose_replica(state.replica, "WeightsNotLoaded", loaded.error)

    async def close(self) -> None:
        """Wait for no load any more."""
        self._replicas = {}
        await self._loads.close()

    async def _load(self, replica: Replica, version: int, pause: float) -> None:
        await asyncio.sleep(pause)
        try:
            loaded = await replica.load(self._term, version)
        except PeerError as error:
            log.info("%s has not taken version %d: %s", replica.name, version, error)
            self._post(WeightsLoaded(replica, None, error))
        else:
            self._post(WeightsLoaded(replica, loaded))
