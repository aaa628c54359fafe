"""An episode book with one replica over a stand-in engine, and a real store: for tests of single calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, FailedPart
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, TurnBounds, TurnCall
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.simulator.peers.observed_store import InlineStore, ObservedStore
from tests.support.episode_job import ENVIRONMENT, EpisodePrompts

T = TypeVar("T")
KEY = TrajectoryKey(PromptKey(0, 3), 1)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@dataclass
class StandInEngine:
    """A replica that emits what a test tells it, and remembers what it was asked."""

    name: str = "rollout-0/replica-0"
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[Mapping[TrajectoryKey, int]] = field(default_factory=list)
    outbox: list[Delta] = field(default_factory=list)
    failure: Exception | None = None
    load_failure: Exception | None = None
    version: int = 1
    loadable: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a load may end."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        if self.failure is not None:
            raise self.failure
        self.requests += requests
        self._wake.set()

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        self.aborted.append(dict(attempts))

    async def load(self, term: int, version: int) -> int:
        await self.loadable.wait()
        if self.load_failure is not None:
            raise self.load_failure
        self.version = version
        return version

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        if len(self.outbox) <= after:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
        stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
        return ReplicaReport("boot", len(self.outbox), tuple(self.outbox[after:]), self.version, stats)

    def emit(
        self,
        tokens: Sequence[int],
        finish: FinishReason | None = STOP,
        offset: int = 0,
        cached: int | None = None,
    ) -> None:
        """Emit tokens for the last request, of which `cached` tokens were held."""
        last = self.requests[-1]
        logprobs = tuple(-0.5 for _ in tokens)
        self.outbox.append(
            Delta(last.key, last.attempt, offset, tuple(tokens), logprobs, last.weight_version, finish, cached)
        )
        self._wake.set()


async def settled() -> None:
    """Let all tasks go on until they wait for something: how long that takes depends on the machine."""
    for _ in range(200):
        await asyncio.sleep(0)


class HeldStore(InlineStore):
    """A store that waits while it is not free."""

    def __init__(self, store: ObservedStore) -> None:
        super().__init__(store)
        self.free = asyncio.Event()
        self.free.set()
        self.calls = 0

    async def do(self, work: Callable[[Store], T]) -> T:
        self.calls += 1
        await self.free.wait()
        return await super().do(work)


@dataclass
class Bench:
    """A book with one replica over a stand-in engine."""

    book: EpisodeBook
    engine: StandInEngine
    replica: EpisodeReplica
    store: Store
    access: HeldStore
    now: list[float]

    async def launch(
        self, attempt: int = 1, version: int = 1, prefix: Sequence[int] = (), key: TrajectoryKey = KEY
    ) -> None:
        request = GenerateRequest(key, attempt, (9,), Sampling(64, seed=1), version, tuple(prefix))
        await self.replica.submit(1, [request])

    async def leased(self, runner: str = "r", journals: bool = False) -> Assignment:
        (found,) = await self.book.runners.lease(ENVIRONMENT, runner, 1.0, 1, journals)
        return found

    def lose_runner(self) -> None:
        """Let the runner be silent for too long."""
        self.now[0] += RunnerRules().silence + 1
        self.book.runners.look(self.now[0])

    async def hand_back(self, episode: EpisodeAttempt) -> None:
        """Let runner r hand an attempt back, because it was told to end."""
        report = EpisodeReport(failed=FailedPart.RUNNER, detail="it was told to end")
        await self.book.runners.done(ENVIRONMENT, "r", episode, report)

    async def begun(self) -> EpisodeAttempt:
        """Launch the response; return its attempt, which runner r has."""
        await self.launch()
        return (await self.leased()).episode

    async def asked(self, call: TurnCall) -> asyncio.Task[RecordedTurn]:
        """Ask for a turn, and let the request reach the engine."""
        asking = asyncio.ensure_future(self.book.turns.turn(call))
        await settled()
        return asking

    def ask(self, episode: EpisodeAttempt, prompt: Sequence[int], retry: bool = False, most: int = 16) -> TurnCall:
        return TurnCall(episode, str(prompt), retry, tuple(prompt), TurnBounds(most), b"{}", 1e9)

    async def answered(
        self, call: TurnCall, tokens: Sequence[int], finish: FinishReason = STOP, cached: int | None = None
    ) -> asyncio.Task[RecordedTurn]:
        """Ask for a turn, let the engine emit it, and wait until it is answered."""
        asked, count = asyncio.ensure_future(self.book.turns.turn(call)), len(self.engine.requests)
        while len(self.engine.requests) == count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        self.engine.emit(tokens, finish, cached=cached)
        await self.replica.poll(1, 0, 5.0)
        await asyncio.wait_for(asyncio.shield(asked), 60.0)
        return asked

    async def deltas(self) -> list[Delta]:
        return list((await self.replica.poll(1, 0, 0.0)).deltas)


@asynccontextmanager
async def bench(
    path: Path,
    limits: Limits | None = None,
    versions: Versions = Versions.SINGLE,
    recovery: Recovery | None = None,
    runners: RunnerRules | None = None,
    overtime: float = EpisodeRules.overtime,
) -> AsyncIterator[Bench]:
    store, now = ObservedStore(path / "state.db", "job", lambda event: None, ()), [1000.0]
    store.adopt_term(1)
    episode = EpisodeRules(replace(limits or Limits(), seconds=60.0), versions, recovery, overtime)
    rules = BookRules({ENVIRONMENT: episode}, 7, runners or RunnerRules())
    access = HeldStore(store)
    book = EpisodeBook(access, rules, lambda: now[0])
    book.use_prompts(EpisodePrompts())
    engine = StandInEngine()
    running = asyncio.ensure_future(book.run(lambda reason, message: None))
    try:
        yield Bench(book, engine, EpisodeReplica(engine, book), store, access, now)  # type: ignore[arg-type]
        assert not running.done(), running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()
