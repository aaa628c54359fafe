"""The replicas of a generation stage: one poller each, commands to them, and which of them may be given work.

A replica that fails a call is lost, and with it what it may or may not have taken on: the fleet hears of it at once,
and whoever waits for an answer to a command goes on. One that hangs must not keep the others from their work.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.protocols import GenerateRequest, PeerError, PeerTimeout, Replica, ReplicaReport, StaleTerm
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.fault_detection.stall_detection import ProgressMonitor
from rljob_runtime.scheduling.lending.gain import EngineSpeed
from rljob_runtime.scheduling.round import Launch


@dataclass(frozen=True)
class ReplicaPolled:
    replica: Replica
    report: ReplicaReport


class ReplicaPool:
    """`present`: the replicas to follow, now. `post` is given what the pollers hear; what engines are seen to do goes
    to `watch`."""

    def __init__(
        self,
        fleet: Fleet,
        term: int,
        settings: Settings,
        watch: EngineObserver,
        post: Callable[[ReplicaPolled | Broken], None],
        present: Callable[[], Mapping[str, Replica]],
    ) -> None:
        self._fleet = fleet
        self._present = present
        self._term = term
        self._settings = settings
        self._watch = watch
        self._post = post
        self._tracked: dict[str, Replica] = {}
        self._owing: dict[str, dict[TrajectoryKey, int]] = {}
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._tasks = StageTasks(post)

    def names(self, without: Collection[str] = ()) -> list[str]:
        """The replicas that are here, but for those of the machines `without`."""
        return [name for name in self._tracked if machine_of(name) not in without]

    def replica(self, name: str) -> Replica | None:
        """The replica of that name, if it is here."""
        return self._tracked.get(name)

    def kv_tokens(self, name: str) -> int:
        """What the KV cache of a replica holds; 0 before it has said anything."""
        return self._watch.kv_tokens(name)

    def engine_speed(self) -> EngineSpeed | None:
        """Of any replica; None before one was seen at work."""
        return self._watch.engine_speed()

    async def track(self, void: Mapping[TrajectoryKey, int]) -> list[str]:
        """Follow the fleet. The replicas that left it, also where another one of the same name took the seat between
        two looks; a newcomer is emptied of what a former coordinator left there, up to the attempts `void`."""
        present = self._present()
        gone = [name for name, replica in self._tracked.items() if present.get(name) is not replica]
        for name in gone:
            del self._tracked[name], self._owing[name]
            self._pollers.pop(name).cancel()
        fresh = [replica for name, replica in present.items() if name not in self._tracked]
        await asyncio.gather(*(self._blaming(replica, replica.abort(self._term, void)) for replica in fresh))
        for replica in fresh:
            self._tracked[replica.name], self._owing[replica.name] = replica, {}
            self._pollers[replica.name] = self._tasks.start(self._poll(replica), name=f"poll-{replica.name}")
        return gone

    async def submit(self, requests: Mapping[str, Sequence[GenerateRequest]]) -> None:
        """Give these replicas these requests."""
        self._watch.submitted(requests, len(self._tracked), asyncio.get_running_loop().time())
        for name, its in requests.items():
            # Before it hears of them: their end may be known before the call has come back.
            self._owing[name] |= {one.key: one.attempt for one in its}
        calls = ((self._tracked[name], its) for name, its in requests.items())
        await asyncio.gather(*(self._blaming(replica, replica.submit(self._term, its)) for replica, its in calls))

    async def abort(self, launches: Iterable[Launch]) -> None:
        """Stop these responses where they run, if that replica is still here."""
        by_replica: dict[str, dict[TrajectoryKey, int]] = defaultdict(dict)
        for launch in launches:
            if launch.lease.replica in self._tracked:
                by_replica[launch.lease.replica][launch.key] = launch.lease.attempt
                self._settled(launch.lease.replica, launch.key, launch.lease.attempt)
        calls = ((self._tracked[name], attempts) for name, attempts in by_replica.items())
        await asyncio.gather(
            *(self._blaming(replica, replica.abort(self._term, attempts)) for replica, attempts in calls)
        )

    async def close(self) -> None:
        """Poll no more."""
        await self._tasks.close()

    async def _poll(self, replica: Replica) -> None:
        """Follow it until it fails. Raises `StaleTerm` where it has heard of a later coordinator."""
        try:
            await self._follow(replica)
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.lose_replica(replica, "ReplicaLost", error)

    async def _follow(self, replica: Replica) -> NoReturn:
        """Raises what it fails with, `PeerTimeout` too where it answers and computes nothing, be it for what it holds
        or for what it was given and does not know of."""
        after, boot, clock = 0, None, asyncio.get_running_loop().time
        progress = ProgressMonitor(self._settings.stall)
        found: int | None = None
        told = False
        while True:
            report = await replica.poll(self._term, after, self._settings.poll_wait)
            if boot is not None and report.boot != boot:
                raise PeerError("its process was started anew")
            boot, after = report.boot, report.cursor
            stats = report.stats
            done = stats.generated_tokens_total + stats.prompt_tokens_total
            for delta in report.deltas:
                if delta.finish_reason is not None:
                    self._settled(replica.name, delta.key, delta.attempt)
            held, owed = stats.running + stats.waiting, len(self._owing[replica.name])
            if progress.stalled(held + owed > 0, done, clock()):
                raise PeerTimeout(f"{owed} responses asked for, {held} held, no token for {self._settings.stall:g} s")
            if found is None:
                found = stats.generated_tokens_total
            elif not told and stats.generated_tokens_total > found:
                told = True
                self._fleet.generates(replica)
            self._watch.note(replica.name, report, clock())
            self._post(ReplicaPolled(replica, report))

    def _settled(self, name: str, key: TrajectoryKey, attempt: int) -> None:
        """This replica owes that response no more."""
        if self._owing[name].get(key) == attempt:
            del self._owing[name][key]

    async def _blaming(self, replica: Replica, call: Coroutine[Any, Any, None]) -> None:
        try:
            await self._fleet.while_here(replica, call)
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.lose_replica(replica, "CommandFailed", error)
