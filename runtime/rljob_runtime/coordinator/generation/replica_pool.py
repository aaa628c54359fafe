"""Replica pool: polls the replicas of a generation stage and sends them commands.

A replica whose call fails is marked lost together with its requests, because their state is unknown. Calls to it end
as soon as its machine leaves. So a replica that hangs does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.protocols import (
    EngineStats,
    GenerateRequest,
    KvExport,
    KvSize,
    KvStats,
    PeerError,
    PeerTimeout,
    Replica,
    ReplicaReport,
    StaleTerm,
)
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.fault_detection.stall_detection import ProgressMonitor
from rljob_runtime.scheduling.lending.gain import EngineSpeed
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.timeline.idle import ENVIRONMENTS, GENERATE

T = TypeVar("T")


@dataclass(frozen=True)
class ReplicaPolled:
    """Event: a replica has answered a poll. `last`: its responses were stopped before, so this is all of them."""

    replica: Replica
    report: ReplicaReport
    last: bool = False


class ReplicaPool:
    """The replicas of one stage, with a poller each.

    `available` returns the replicas that may take requests. `post` receives the events. `observer` receives what polls
    show of the engines' speed.
    """

    def __init__(
        self,
        fleet: Fleet,
        term: int,
        settings: Settings,
        observer: EngineObserver,
        post: Callable[[ReplicaPolled | Broken], None],
        available: Callable[[], Mapping[str, Replica]],
    ) -> None:
        self._fleet = fleet
        self._available = available
        self._term = term
        self._settings = settings
        self._observer = observer
        self._post = post
        self._tracked: dict[str, Replica] = {}
        self._assigned: dict[str, dict[TrajectoryKey, int]] = {}
        self._waiting: set[str] = set()
        """Replicas whose responses all waited for their environments at the last poll."""
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._cursors: dict[str, int] = {}
        """By replica: the cursor of the last report that was posted."""
        self._kv: dict[str, EngineStats] = {}
        """By replica: the statistics of the last report, for its KV."""
        self._transfers: Counter[str] = Counter()
        """By replica: calls under way that move KV. Its engine computes nothing else meanwhile."""
        self._beside: set[asyncio.Task[None]] = set()
        """Calls of replicas that move KV first."""
        self._moved = asyncio.Event()
        """Set, and replaced, when a call that moves KV has ended."""
        self._stopping: set[str] = set()
        self._tasks = StageTasks(post)

    def names(self, without: Collection[str] = ()) -> list[str]:
        """Return the tracked replicas, except those of the machines `without`."""
        return [name for name in self._tracked if machine_of(name) not in without]

    def replica(self, name: str) -> Replica | None:
        """Return the replica of that name if it is tracked."""
        return self._tracked.get(name)

    def assigned(self, name: str) -> int:
        """Return the number of responses that a replica was given and has not ended."""
        return len(self._assigned.get(name, ()))

    def kv_tokens(self, name: str) -> int:
        """Return the capacity of a replica's KV cache; 0 before its first poll."""
        return self._observer.kv_tokens(name)

    def kv_stats(self, name: str) -> KvStats | None:
        """Return the totals of a replica's KV transfers; None before its first poll in its present layout."""
        stats = self._kv.get(name)
        return stats.kv if stats is not None else None

    @property
    def kv_size(self) -> KvSize | None:
        """The size of the KV that engines can move, with the smallest room of a machine; None if one moves none."""
        sizes = [stats.kv_size for stats in self._kv.values()]
        known = [size for size in sizes if size is not None]
        return min(known, key=lambda size: size.room_bytes) if known and len(known) == len(sizes) else None

    def observed(self) -> ObservedEngines:
        """Return what was observed of the tracked replicas."""
        names, observer = self.names(), self._observer
        return ObservedEngines(
            {name: observer.kv_tokens(name) for name in names},
            {name: observer.waiting(name) for name in names},
            {name: self._fleet.layout_of(name) for name in names},
            observer.all_speeds(),
            self._fleet.tensor_parallel,
            self.kv_size,
        )

    def engine_speed(self) -> EngineSpeed | None:
        """Return the speed of an engine in the layout of most machines; None before one was observed."""
        return self._observer.engine_speed(self._fleet.tensor_parallel)

    @property
    def outdated(self) -> bool:
        """Whether other replicas are available than those that are tracked."""
        available = self._available()
        return available.keys() != self._tracked.keys() or any(
            available[name] is not replica for name, replica in self._tracked.items()
        )

    async def track(self, void: Mapping[TrajectoryKey, int]) -> list[str]:
        """Track the available replicas; return those that left.

        A replica that another one of the same name has replaced counts as left. A new replica drops the requests of an
        earlier coordinator, up to the attempts `void`.
        """
        available = self._available()
        left = [name for name, replica in self._tracked.items() if available.get(name) is not replica]
        for name in left:
            del self._tracked[name], self._assigned[name], self._cursors[name]
            self._kv.pop(name, None)
            self._waiting.discard(name)
            self._fleet.timeline.activity(name, None)
            self._pollers.pop(name).cancel()
        fresh = [replica for name, replica in available.items() if name not in self._tracked]
        await asyncio.gather(*(self._command(replica, partial(replica.abort, self._term, void)) for replica in fresh))
        for replica in fresh:
            self._tracked[replica.name], self._assigned[replica.name] = replica, {}
            self._cursors[replica.name] = 0
            self._pollers[replica.name] = self._tasks.start(self._poll(replica), name=f"poll-{replica.name}")
        return left

    async def submit(self, requests: Mapping[str, Sequence[GenerateRequest]]) -> None:
        """Submit these requests to these replicas.

        A replica that copies KV is not waited for: that takes as long as the KV is large. An abort meanwhile holds for
        its requests too, since no attempt starts after its abort."""
        self._observer.record_submitted(requests.keys(), self._tracked)
        calls = []
        for name, its in requests.items():
            replica = self._tracked[name]
            # Before the call: a poll may return the end of a response before the call returns.
            self._assigned[name] |= {one.key: one.attempt for one in its}
            self._waiting.discard(name)
            self._show(name)
            if any(one.kv_file is not None for one in its):
                self._tasks.start(self._submit_with_kv(replica, its), name=f"import-{name}")
            else:
                calls.append((replica, partial(replica.submit, self._term, its)))
        await self._answered(calls)

    async def _answered(self, calls: Iterable[tuple[Replica, Callable[[], Coroutine[Any, Any, None]]]]) -> None:
        """Call replicas and wait for their answers. Those that move KV are called afterwards, and not waited for."""
        waited = []
        for replica, call in calls:
            if self._transfers[replica.name]:
                task = self._tasks.start(self._afterwards(replica, call), name=f"after-{replica.name}")
                self._beside.add(task)
                task.add_done_callback(self._beside.discard)
            else:
                waited.append(self._command(replica, call))
        await asyncio.gather(*waited)

    async def _afterwards(self, replica: Replica, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while self._transfers[replica.name]:
            await self._moved.wait()
        await self._command(replica, call)

    async def _submit_with_kv(self, replica: Replica, requests: Sequence[GenerateRequest]) -> None:
        await self._transfer(replica, partial(replica.submit, self._term, requests))

    async def _transfer(self, replica: Replica, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a call that moves KV, as `_command` does."""
        self._transfers[replica.name] += 1
        try:
            return await self._command(replica, call)
        finally:
            self._transfers[replica.name] -= 1
            self._moved.set()
            self._moved = asyncio.Event()

    @contextmanager
    def stopping(self, machine: str) -> Iterator[None]:
        """Leave the responses of a machine to the caller, who stops them all: `abort` does not wait for its replicas.

        A replica that writes KV answers no other command meanwhile."""
        self._stopping.add(machine)
        try:
            yield
        finally:
            self._stopping.discard(machine)

    async def abort(self, launches: Iterable[Launch]) -> None:
        """Abort these responses at their replicas, if those are still tracked and their machine is not stopping."""
        await self.stop(self._of_others(launches))

    async def drop(self, launches: Iterable[Launch]) -> None:
        """Abort these responses like `abort`; replicas that move KV are not waited for."""
        calls = self._stop_assigned(self._of_others(launches))
        await self._answered((replica, partial(replica.abort, self._term, attempts)) for replica, attempts in calls)

    async def stop(self, launches: Iterable[Launch]) -> None:
        """Abort these responses at their replicas, if those are still tracked."""
        calls = self._stop_assigned(launches)
        await asyncio.gather(
            *(self._command(replica, partial(replica.abort, self._term, attempts)) for replica, attempts in calls)
        )

    async def export_kv(self, launches: Iterable[Launch]) -> list[tuple[Replica, KvExport]]:
        """Abort these responses like `stop`, and have their KV written first; return the receipts.

        A replica that fails is lost and has no receipt."""
        calls = self._stop_assigned(launches)
        receipts = await asyncio.gather(
            *(self._transfer(replica, partial(replica.export_kv, self._term, attempts)) for replica, attempts in calls)
        )
        answered = zip(calls, receipts, strict=True)
        return [(replica, receipt) for (replica, _), receipt in answered if receipt is not None]

    def _of_others(self, launches: Iterable[Launch]) -> list[Launch]:
        """Return the launches on machines that are not stopping."""
        return [launch for launch in launches if machine_of(launch.lease.replica) not in self._stopping]

    def _stop_assigned(self, launches: Iterable[Launch]) -> list[tuple[Replica, dict[TrajectoryKey, int]]]:
        """Record that these responses are not assigned any more; return their attempts at each tracked replica."""
        by_replica: dict[str, dict[TrajectoryKey, int]] = defaultdict(dict)
        for launch in launches:
            if launch.lease.replica in self._tracked:
                by_replica[launch.lease.replica][launch.key] = launch.lease.attempt
                self._record_end(launch.lease.replica, launch.key, launch.lease.attempt)
        return [(self._tracked[name], attempts) for name, attempts in by_replica.items()]

    async def collect(self, names: Collection[str], last: bool = False) -> None:
        """Poll these replicas once and post their reports. After an abort, these hold all that the replicas made.

        `last`: see `ReplicaPolled`. A replica that left the fleet meanwhile is not waited for.
        """
        members = self._fleet.available()
        # In the order of the pool: one of a set of names would differ from process to process.
        tracked = [one for name, one in self._tracked.items() if name in names and members.get(name) is one]
        await asyncio.gather(*(self._command(replica, partial(self._collect, replica, last)) for replica in tracked))

    async def close(self) -> None:
        """Stop polling, once all replicas have what they were told: new weights are loaded next."""
        if self._beside:
            await asyncio.wait(self._beside)
        for name in self._tracked:
            self._fleet.timeline.activity(name, None)
        await self._tasks.close()

    async def _poll(self, replica: Replica) -> None:
        """Poll a replica until it fails. Raises `StaleTerm` if a later coordinator has the term."""
        try:
            await self._poll_forever(replica)
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_replica_lost(replica, "ReplicaLost", error)

    async def _collect(self, replica: Replica, last: bool) -> None:
        report = await replica.poll(self._term, self._cursors.get(replica.name, 0), 0.0)
        # The replica may have left meanwhile; then its requests are lost, and its report is dropped as stale.
        if self._tracked.get(replica.name) is replica:
            self._receive(replica, report, last)

    async def _poll_forever(self, replica: Replica) -> NoReturn:
        """Poll a replica. Raises what the poll raises, and `PeerTimeout` if the replica answers but does not compute.

        A replica without requests is also expected to compute if responses are assigned to it: it may have lost them.
        """
        after, boot, clock = 0, None, asyncio.get_running_loop().time
        progress = ProgressMonitor(self._settings.stall)
        first_total: int | None = None
        recorded = False
        while True:
            report = await replica.poll(self._term, after, self._settings.poll_wait)
            if boot is not None and report.boot != boot:
                raise PeerError("its process was restarted")
            boot, after = report.boot, report.cursor
            stats = report.stats
            done = stats.computed_tokens
            self._record_ends(replica, report)
            held, assigned = stats.running + stats.waiting, len(self._assigned[replica.name]) - report.outside
            expected = held + assigned > 0 and not self._transfers[replica.name]
            if progress.stalled(expected, done, clock()):
                raise PeerTimeout(
                    f"{assigned} responses assigned, {held} held, no token for {self._settings.stall:g} s"
                )
            if first_total is None:
                first_total = stats.generated_tokens_total
            elif not recorded and stats.generated_tokens_total > first_total:
                recorded = True
                self._fleet.record_generating(replica)
            self._observer.record(replica.name, report)
            self._receive(replica, report)

    def _receive(self, replica: Replica, report: ReplicaReport, last: bool = False) -> None:
        known = self._kv.get(replica.name)
        if known is None or known.computed_tokens <= report.stats.computed_tokens:
            # Of two polls, the later answer may arrive first.
            self._kv[replica.name] = report.stats
        self._record_ends(replica, report)
        self._cursors[replica.name] = report.cursor
        self._post(ReplicaPolled(replica, report, last))

    def _record_ends(self, replica: Replica, report: ReplicaReport) -> None:
        for delta in report.deltas:
            if delta.finish_reason is not None:
                self._forget(replica.name, delta.key, delta.attempt)
        if report.outside and report.outside >= len(self._assigned[replica.name]):
            self._waiting.add(replica.name)
        else:
            self._waiting.discard(replica.name)
        self._show(replica.name)

    def _record_end(self, name: str, key: TrajectoryKey, attempt: int) -> None:
        """Record that this response is no longer assigned to this replica."""
        self._forget(name, key, attempt)
        self._show(name)

    def _forget(self, name: str, key: TrajectoryKey, attempt: int) -> None:
        if self._assigned[name].get(key) == attempt:
            del self._assigned[name][key]

    def _show(self, name: str) -> None:
        """Record what a replica does now."""
        doing = ENVIRONMENTS if name in self._waiting else GENERATE
        self._fleet.timeline.activity(name, doing if self._assigned[name] else None)

    async def _command(self, replica: Replica, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a call to a replica. If the call fails, mark the replica as lost and return None.

        The call is made here: a stage may be cancelled before this task has run, and no call may begin then."""
        try:
            return await self._fleet.run_while_member(replica, call())
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_replica_lost(replica, "CommandFailed", error)
            return None
