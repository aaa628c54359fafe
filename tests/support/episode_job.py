"""Jobs whose responses are episodes, under virtual time: the simulated job, with simulated runners beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rljob_api.status import Finished
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.episodes import ManyTurns
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.errors import PeerGone
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, Trained
from rljob_runtime.simulator.episode_side import EpisodePrompts as SimulatedEpisodePrompts
from rljob_runtime.simulator.invariants.asynchronous import ExperienceInvariants
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.runners import NO_BOUND, Door, SimulatedRunners
from tests.support.crashes import Crash, CrashAt
from tests.support.simulated_job import Stage

T = TypeVar("T")

ENVIRONMENT = "calc"


class EpisodePrompts(SimulatedEpisodePrompts):
    """Prompts of one environment."""

    environments = (ENVIRONMENT,)


@dataclass
class EpisodeStage(Stage):
    """A stage whose responses are episodes."""

    script: HarnessScript = field(default_factory=HarnessScript)
    limits: Limits = field(default_factory=Limits)
    versions: Versions = Versions.SINGLE
    rules: RunnerRules = field(default_factory=RunnerRules)
    seconds: float = 300.0
    recovery: Recovery | None = None
    places: int = NO_BOUND
    """For episodes, of each runner."""

    def __post_init__(self) -> None:
        self.prompts = self.prompts or EpisodePrompts(
            evaluations={one.name: one.max_prompts for one in self.job.spec.evaluation}
        )
        super().__post_init__()
        if isinstance(self.invariants, ExperienceInvariants):
            self.invariants.mixed = self.versions is Versions.MIXED
        self.books: list[EpisodeBook] = []
        """Of each coordinator."""
        self.runners = SimulatedRunners(
            ENVIRONMENT,
            self.script,
            lambda runner: self._door(),
            observe=self.observe,
            recovery=self.recovery,
        )
        self.runners.places = self.places
        self.trained: list[Group] = []
        self.watchers.append(self._keep)

    @property
    def environments(self) -> dict[str, EpisodeRules]:
        """What bounds the episodes, as the settings of a job with environments have it."""
        return {ENVIRONMENT: EpisodeRules(replace(self.limits, seconds=self.seconds), self.versions, self.recovery)}

    def episodes(self, store: StoreAccess) -> ManyTurns:
        book = EpisodeBook(
            store, BookRules(self.environments, seed=7, runners=self.rules), asyncio.get_running_loop().time
        )
        assert isinstance(self.source, EpisodePrompts)
        book.use_prompts(self.source)
        self.books.append(book)
        return ManyTurns(book)

    @property
    def book(self) -> EpisodeBook:
        """The present coordinator's."""
        return self.books[-1]

    def totals(self) -> BookTotals:
        """Return the counts of all coordinators."""
        made = BookTotals()
        for book in self.books:
            made.attempts += book.totals.attempts
            made.turns += book.totals.turns
            made.forks += book.totals.forks
            made.retries += book.totals.retries
            made.later_prompt_tokens += book.totals.later_prompt_tokens
            made.held_prompt_tokens += book.totals.held_prompt_tokens
            made.reencoded_tokens += book.totals.reencoded_tokens
            made.interrupted_turns += book.totals.interrupted_turns
            made.interrupted_tokens += book.totals.interrupted_tokens
            made.load_wait_seconds += book.totals.load_wait_seconds
            made.tool_calls += book.totals.tool_calls
            made.resumed += book.totals.resumed
            made.replayed_calls += book.totals.replayed_calls
            made.replayed_turns += book.totals.replayed_turns
            made.refused_replays += book.totals.refused_replays
            made.calls_executed_twice += book.totals.calls_executed_twice
            made.ends += book.totals.ends
            made.aborts += book.totals.aborts
        return made

    def play(self, *meanwhile: Callable[[Any], Awaitable[None]], **changes: Any) -> Finished | None:
        return super().play(self._run_runners, *meanwhile, **changes)

    def play_through(
        self, crashes: Sequence[int | CrashAt], *meanwhile: Callable[[Any], Awaitable[None]]
    ) -> Finished | None:
        """Play; kill the coordinator after so many moments around its store, each time; play on to the end."""

        async def lives() -> Finished | None:
            tasks = [asyncio.ensure_future(action(self)) for action in (self._run_runners, *meanwhile)]
            try:
                for moment in crashes:
                    self.around = moment if isinstance(moment, CrashAt) else CrashAt(moment)
                    with contextlib.suppress(Crash):
                        return await self.coordinate()
                self.around = lambda moment: None
                return await self.coordinate()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        return virtual_time.run(lives())

    async def coordinate(self, **changes: Any) -> Finished | None:
        self._dead = asyncio.Event()
        try:
            # As the settings of a job with environments have it.
            environments = {"environments": self.environments}
            unmerged = {"repack": None} if self.versions is Versions.MIXED else {}
            async with asyncio.timeout(3_600):
                return await super().coordinate(**{**environments, **unmerged, **changes})
        finally:
            self._dead.set()

    async def _run_runners(self, stage: Stage) -> None:
        await self.runners.run()

    def _door(self) -> Door | None:
        return _Door(self.book, self._dead) if self.books and not self._dead.is_set() else None

    def _keep(self, event: Event) -> None:
        if isinstance(event, Trained):
            self.trained += event.groups


class _Door:
    """What a coordinator offers; its calls end with it."""

    def __init__(self, book: EpisodeBook, dead: asyncio.Event) -> None:
        self._book = book
        self._dead = dead
        self.turns = self.environments = self

    async def turn(self, call: TurnCall) -> RecordedTurn:
        return await self._while_it_lives(self._book.turns.turn(call))

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        return await self._while_it_lives(self._book.turns.history(episode, newest))

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        return await self._while_it_lives(self._book.runners.lease(environment, runner, wait_seconds, most, journals))

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        await self._while_it_lives(self._book.runners.called(environment, runner, episode, call))

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        return await self._while_it_lives(self._book.runners.heartbeat(environment, runner, episodes))

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        await self._while_it_lives(self._book.runners.done(environment, runner, episode, report))

    async def _while_it_lives(self, call: Coroutine[Any, Any, T]) -> T:
        return await alongside(call, self._death())

    async def _death(self) -> None:
        await self._dead.wait()
        raise PeerGone("the coordinator died")
