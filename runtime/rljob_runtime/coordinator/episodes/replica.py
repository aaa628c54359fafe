"""Episode replica: a replica whose responses are episodes.

A request for a response opens or goes on with an attempt of an episode. Each of its turns is a request of the replica
below, with the leases, aborts and losses of every request. The stored turns come back as the response's tokens.

Where versions are mixed, weights are loaded between two turns (`scheduling.episodes.weight_load`). A turn that is asked
for or interrupted meanwhile waits until the load ends, whether it succeeds or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Protocol

from rljob_api.status import Member
from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks, wait_for_event
from rljob_runtime.coordinator.episodes.attempt import Attempt, Holder, OpenTurn, turn_key, turn_of
from rljob_runtime.coordinator.store.connection import ATTEMPTS_A_TERM
from rljob_runtime.protocols import (
    Backend,
    Delta,
    EngineProfile,
    GenerateRequest,
    KeptEngines,
    KvExport,
    KvRefusal,
    MachinePeers,
    PeerError,
    ProfileLimits,
    Replica,
    ReplicaReport,
    StaleTerm,
)
from rljob_runtime.protocols.delegating import DelegatingBackend
from rljob_runtime.protocols.errors import Refused, WrongVersion
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.episodes.weight_load import RunningTurn, seconds_to_wait


class EngineTurns(Protocol):
    """The open turns, as replicas need them; `turn_service.TurnService` has them."""

    def request(self, attempt: Attempt, live: OpenTurn, version: int) -> GenerateRequest:
        """Return the request of an open turn with these weights."""
        ...

    def receive(self, place: tuple[int, int], replica: Holder, delta: Delta) -> bool:
        """Take tokens of a turn; return whether the replica shall go on with it."""
        ...

    def refuse(self, attempt: Attempt, live: OpenTurn, launch: int, why: str) -> None:
        """End the attempt of a turn that no engine can serve. `launch`: the attempt of its request."""
        ...


class Book(Protocol):
    """The attempts, as replicas need them; `book.EpisodeBook` has them."""

    @property
    def turns(self) -> EngineTurns:
        """Their turns."""
        ...

    async def take(self, requests: Sequence[GenerateRequest], holder: Holder) -> None:
        """Open an attempt for each response, or go on with the one that it has."""
        ...


class EpisodeBackend(DelegatingBackend):
    """A backend whose replicas generate episodes."""

    def __init__(self, backend: Backend, book: Book) -> None:
        super().__init__(backend)
        self._book = book

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """See `protocols.Backend.rollout_machine`."""
        peers = await super().rollout_machine(term, member, model_files)
        return replace(peers, replicas=tuple(EpisodeReplica(one, self._book) for one in peers.replicas))


class EpisodeReplica:
    """A `protocols.Replica` over another one, for the attempts in `book`."""

    def __init__(self, replica: Replica, book: Book) -> None:
        self.name = replica.name
        self._replica = replica
        self._book = book
        self._held: dict[TrajectoryKey, Attempt] = {}
        self._arriving: dict[TrajectoryKey, int] = {}
        """The leases of responses that are submitted, and that the book has not given yet."""
        self._outbox: list[tuple[int, Delta]] = []
        self._sent = 0
        self._received = 0
        """The cursor of the replica below."""
        self._report: ReplicaReport | None = None
        self._wake = asyncio.Event()
        self._told_waiting = False
        """Whether all responses waited for their environments at the last report."""
        self._failure: BaseException | None = None
        self._tasks = StageTasks(self._fail)
        self._term = 0
        self._version: int | None = None
        """The weights that it holds, as it reported first or loaded last; None if that is not known."""
        self._loading = False
        self._turns_changed = asyncio.Event()
        """Set when a turn has ended, or waits for the load."""
        self._calls: set[asyncio.Task[None]] = set()
        """Calls about turns that are under way."""
        self._polls = 0
        """Polls under way. A stage that has a replica always polls it."""

    @property
    def generates(self) -> bool:
        """Whether turns are generated here: a stage polls it, and no call has failed."""
        return self._polls > 0 and self._failure is None

    # --- passed on ---

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        """See `protocols.Replica.release_accelerators`."""
        self._version = None
        return await self._replica.release_accelerators(term, tensor_parallel)

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        """See `protocols.Replica.switch_layout`."""
        self._version = None
        return await self._replica.switch_layout(term, tensor_parallel)

    async def drop_kv(self, term: int) -> None:
        """See `protocols.Replica.drop_kv`."""
        await self._replica.drop_kv(term)

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        """See `protocols.Replica.profile`."""
        return await self._replica.profile(term, limits)

    async def load(self, term: int, version: int) -> int:
        """See `protocols.Replica.load`. Open turns of mixed versions end first, or begin again after it."""
        self._loading = True
        try:
            await self._end_turns(term)
            self._version = loaded = await self._replica.load(term, version)
        except asyncio.CancelledError:
            # The replica has left the fleet: its responses are generated elsewhere, and its weights are not known.
            self._loading, self._version = False, None
            raise
        except PeerError:
            self._go_on()
            raise
        self._go_on()
        return loaded

    # --- responses ---

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """See `protocols.Replica.submit`. A wrong version shows only at the first turn; the next poll raises it.

        If the call is cancelled, responses that the book has not given to this replica wait for another launch."""
        self._term = term
        arriving = {one.key: one.attempt for one in requests}
        self._arriving |= arriving
        try:
            await self._book.take(requests, self)
        finally:
            for key, lease in arriving.items():
                self._stop_arriving(key, lease)

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop these responses: their attempts wait with their open turns until another replica has them."""
        self._term = term
        for key, lease in attempts.items():
            self._stop_arriving(key, lease)
        stopped = [held for key, attempt in attempts.items() if (held := self._held.get(key)) and held.lease <= attempt]
        turns: dict[TrajectoryKey, int] = {}
        for one in stopped:
            del self._held[one.key]
            one.holder = None
            turns |= {turn_key(one.id, turn): live.launches for turn, live in one.open.items() if live.replica is self}
        self._turns_changed.set()
        self._tell_waiting()
        await self._replica.abort(term, turns)

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        """Stop these responses. No KV is written."""
        await self.abort(term, attempts)
        return KvExport(None, {}, 0, 0.0, KvRefusal.UNSUPPORTED, "episodes of several turns move none")

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`. It also ends when a turn or an end is stored, or the engine has work again."""
        self._term = term
        self._outbox = [entry for entry in self._outbox if entry[0] > after]
        if self._failure is None:
            self._polls += 1
            try:
                told = not self._outbox and self._all_wait == self._told_waiting
                report = await self._poll_below(wait_seconds if told else 0.0)
            finally:
                self._polls -= 1
        if self._failure is not None:
            raise self._failure
        self._told_waiting, idle = self._all_wait, sum(map(self._waits, self._held.values()))
        deltas = tuple(delta for _, delta in self._outbox)
        return replace(report, cursor=self._sent, deltas=deltas, outside=idle)

    @property
    def _all_wait(self) -> bool:
        """Whether there are responses, and the engine has nothing to compute for any of them."""
        return bool(self._held) and all(map(self._waits, self._held.values()))

    def _waits(self, held: Attempt) -> bool:
        return not any(live.replica is self for live in held.open.values())

    def _tell_waiting(self, launched: bool = False) -> None:
        """End the poll under way if it said otherwise before, or if the pool has `launched` something that waits."""
        if not self._wake.is_set() and (self._all_wait if launched else self._all_wait != self._told_waiting):
            self._wake.set()

    # --- for the book ---

    def hold(self, attempt: Attempt) -> None:
        """Go on with an attempt: report what is not reported yet, and generate its open turns.

        One that was stopped before it arrived waits for another replica."""
        if self._arriving.get(attempt.key) != attempt.lease:
            attempt.holder = None
            return
        del self._arriving[attempt.key]
        self._held[attempt.key] = attempt
        attempt.holder = self
        self.tell(attempt)
        for live in attempt.open.values():
            self.generate(attempt, live)
        self._tell_waiting(launched=True)

    def tell(self, attempt: Attempt) -> None:
        """Report what is stored of an attempt that is held here."""
        if (delta := attempt.take_delta()) is None:
            return
        self._sent += 1
        self._outbox.append((self._sent, delta))
        if attempt.ended:
            self._forget(attempt)
        self._wake.set()

    def generate(self, attempt: Attempt, live: OpenTurn) -> None:
        """Submit an open turn; one that needs newer weights waits for their load."""
        now = asyncio.get_running_loop().time()
        if (version := self._version_for(attempt)) is None:
            if live.replica is self:
                # The engine may have it, and a load is refused as long as it does.
                self._start(
                    self._replica.abort(self._term, {turn_key(attempt.id, live.turn.id): live.launches}), "wait"
                )
            live.wait(now)
            self._turns_changed.set()
            return
        # An earlier coordinator may have submitted a turn of the same number, and died before it was stored.
        live.launches = max(live.launches, self._term * ATTEMPTS_A_TERM) + 1
        live.submit(self, now)
        self._tell_waiting()
        request = self._book.turns.request(attempt, live, version)
        self._start(self._submit(attempt, live, request), name=f"turn-{request.key}")

    def stop(self, attempt: Attempt, turns: Mapping[int, OpenTurn]) -> None:
        """Forget an attempt that is over here, and stop turns that no client waits for."""
        self._forget(attempt)
        self._turns_changed.set()
        self._tell_waiting()
        ours = {turn_key(attempt.id, turn): live.launches for turn, live in turns.items() if live.replica is self}
        if ours:
            self._start(self._replica.abort(self._term, ours), name=f"stop-{attempt.id}")

    # --- loads ---

    def _version_for(self, attempt: Attempt) -> int | None:
        """Return the weights that generate the attempt's next turn here; None if it waits for a load."""
        if not attempt.is_mixed:
            return attempt.version
        if self._loading:
            return None
        held = attempt.version if self._version is None else self._version
        return held if held >= attempt.least_version else None

    def _running(self) -> list[OpenTurn]:
        """Return the open turns of mixed versions that this replica generates."""
        held = (one for one in self._held.values() if one.is_mixed)
        return [live for one in held for live in one.open.values() if live.replica is self]

    def _waiting(self) -> list[tuple[Attempt, OpenTurn]]:
        """Return the open turns that wait for a load here."""
        held = list(self._held.values())
        return [(one, live) for one in held for live in one.open.values() if live.waits_since is not None]

    async def _end_turns(self, term: int) -> None:
        """Return when the replica below has no turn of mixed versions: they have ended, or are interrupted."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while running := self._running():
            now = clock()
            turns = [RunningTurn(now - live.submitted, live.interrupted) for live in running]
            waits = [now - live.waits_since for _, live in self._waiting() if live.waits_since is not None]
            if (left := seconds_to_wait(turns, waits, now - began)) <= 0:
                await self._interrupt(term, now)
                return
            await wait_for_event(self._turns_changed, left if left < inf else None)
        await self._settled()

    async def _interrupt(self, term: int, now: float) -> None:
        """Stop the open turns of mixed versions. They wait for the load."""
        stopped: dict[TrajectoryKey, int] = {}
        for attempt in self._held.values():
            for turn, live in attempt.open.items():
                if attempt.is_mixed and live.replica is self:
                    stopped[turn_key(attempt.id, turn)] = live.launches
                    live.wait(now, interrupted=True)
        # A request that arrives after the load would find other weights.
        await self._settled()
        await self._replica.abort(term, stopped)

    async def _settled(self) -> None:
        """Return when no call about turns is under way."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _go_on(self) -> None:
        """Submit the turns that have waited for the load, as far as its weights may generate them."""
        self._loading = False
        for attempt, live in self._waiting():
            self.generate(attempt, live)

    # --- details ---

    def _start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.start(call, name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _stop_arriving(self, key: TrajectoryKey, lease: int) -> None:
        if self._arriving.get(key, lease + 1) <= lease:
            del self._arriving[key]

    def _forget(self, attempt: Attempt) -> None:
        # Another attempt of the same response may be here by now.
        if self._held.get(attempt.key) is attempt:
            del self._held[attempt.key]

    async def _submit(self, attempt: Attempt, live: OpenTurn, request: GenerateRequest) -> None:
        """Submit a turn. If the replica refuses it, only its attempt ends.

        As an error of the replica, the refusal would cost this replica, and then each one that gets the turn next."""
        try:
            await self._replica.submit(self._term, [request])
        except (StaleTerm, WrongVersion):
            raise
        except Refused as error:
            self._book.turns.refuse(attempt, live, request.attempt, str(error))

    async def _poll_below(self, wait_seconds: float) -> ReplicaReport:
        """Return the newest report of the replica below; the last one if the outbox fills first."""
        self._wake.clear()
        poll = asyncio.ensure_future(self._replica.poll(self._term, self._received, wait_seconds))
        wake = asyncio.ensure_future(self._wake.wait())
        first: list[asyncio.Future[Any]] = [poll] if self._report is None else [poll, wake]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if poll.done():
                self._take(poll.result())
        finally:
            for task in (poll, wake):
                task.cancel()
            await asyncio.gather(poll, wake, return_exceptions=True)
        assert self._report is not None
        return self._report

    def _take(self, report: ReplicaReport) -> None:
        """Take the tokens of turns. Those of turns that are not open here are stopped."""
        strays: dict[TrajectoryKey, int] = {}
        for delta in report.deltas:
            place = turn_of(delta.key)
            if place is not None and self._book.turns.receive(place, self, delta):
                continue
            if delta.finish_reason is None:
                strays[delta.key] = delta.attempt
            elif strays.get(delta.key) == delta.attempt:
                del strays[delta.key]
        if strays:
            self._start(self._replica.abort(self._term, strays), name="stray-turns")
        if self._version is None:
            self._version = report.weight_version
        self._report, self._received = report, report.cursor
        self._turns_changed.set()

    def _fail(self, broken: Broken) -> None:
        """Let the next poll raise the error of a call. If it is a `PeerError`, the pool marks the replica as lost."""
        self._failure = self._failure or broken.error
        self._wake.set()
