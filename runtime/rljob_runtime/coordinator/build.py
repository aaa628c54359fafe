"""Build: constructs a coordinator from a job, for a pod and for a laptop: store, prompts, rewards, round log."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_api.spec import RLJobSpec
from rljob_api.spec.resources import Samples
from rljob_api.status import Finished, RuntimeStatus
from rljob_runtime.coordinator.coordinator import Coordinator, CoordinatorInputs
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.episodes import Episodes, ManyTurns, SingleTurns
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.coordinator.inputs import LazyRewards, ObservedPrompts, open_prompts
from rljob_runtime.coordinator.loop.context import RoundObserver
from rljob_runtime.coordinator.reporting.observer_feed import ObserverFeed, observer_journals
from rljob_runtime.coordinator.reporting.round_log import RoundJournal, RoundLog, TensorBoard
from rljob_runtime.coordinator.reporting.timeline import Timeline, TimelineLog
from rljob_runtime.coordinator.samples.writer import SampleWriter
from rljob_runtime.coordinator.store.connection import file_errors_stated
from rljob_runtime.coordinator.store.opening import EarlyReports, open_store
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess, StoreThread
from rljob_runtime.coordinator.store.tables.kept_samples import Advantages
from rljob_runtime.gateway.steady_clock import steady_clock
from rljob_runtime.observers.sent_traces import traced_run
from rljob_runtime.protocols import Backend, ControlPlane, PromptSource
from rljob_runtime.scheduling.layouts.layout_switch import SwitchPolicy

STORE_PATIENCE = 5.0
"""Seconds to wait for a store that another process holds, if that process may not end."""


ServeEpisodes = Callable[[EpisodeBook], contextlib.AbstractAsyncContextManager[None]]
"""Serves the attempts of a book to agents and runners while the context is open."""
ServeStore = Callable[[StoreAccess], contextlib.AbstractContextManager[None]]
"""Answers requests from the job's store while the context is open."""


@dataclass(frozen=True)
class Folders:
    """Folders of a coordinator. `state` is on its volume and outlives it; `scratch` may be lost."""

    state: Path
    scratch: Path


async def run_job(
    job: RLJob,
    rewards: LazyRewards,
    control: ControlPlane,
    backend: Backend,
    folders: Folders,
    term: int,
    advantages: Advantages,
    observers: Sequence[RoundObserver] = (),
    on_report: Callable[[RuntimeStatus], None] = lambda status: None,
    on_start: Callable[[Coordinator], None] = lambda coordinator: None,
    patience: float = STORE_PATIENCE,
    serve_episodes: ServeEpisodes | None = None,
    switch_policy: SwitchPolicy | None = None,
    serve_store: ServeStore | None = None,
) -> Finished | None:
    """Run the job's coordinator until the job ends; return its result, or None after `Coordinator.stop`.

    `advantages`: the trainer's, of a group's rewards; samples show them. `serve_episodes`: gateway and runners of a job
    with environments, which run from the time at which prompts are open. `switch_policy`: in place of the spec's.
    `serve_store`: for those who read the store while the job runs.
    Raises `StoreUnusable` if the state folder belongs to another job, another process holds its store for longer than
    `patience` seconds, or its volume is full or fails while the job runs.
    """
    settings = Settings.of(job)
    early = EarlyReports(control, job.status.runtime, settings.back_off)
    path = folders.state / "state.db"
    store = await _open_store(job, path, early, patience)
    records = _Records.of(job, folders.state, store, control, advantages)
    book = _episode_book(job, store, settings)
    with file_errors_stated(path):
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(store.aclose)
            if serve_store is not None:
                closing.enter_context(serve_store(store))
            records.close_with(closing)
            prompts = _Prompts(job, folders.scratch, rewards, records.samples, book, serve_episodes, closing)
            term = await store.do(lambda opened: opened.adopt_term(term))
            await records.samples.use(job.spec.samples)
            inputs = CoordinatorInputs(control, backend, store, prompts.open, rewards, settings, term)
            inputs = replace(
                records.observe(inputs, observers),
                on_report=on_report,
                before=early.draft if job.status.runtime is not None else None,
                episodes=episodes_of(job.spec, book),
                switch_policy=switch_policy,
            )
            coordinator = Coordinator(inputs)
            on_start(coordinator)
            async with _beside(records.samples.run(), "samples"):
                return await coordinator.run()


def episodes_of(spec: RLJobSpec, book: EpisodeBook | None) -> Episodes:
    """Return how a job's responses are generated, scored and trained on. `book`: of a job with environments."""
    return SingleTurns() if book is None else ManyTurns(book, spec.adds_environment_rewards, len(spec.environments))


async def _open_store(job: RLJob, path: Path, early: EarlyReports, patience: float) -> StoreThread:
    """Open the job's store; `early` reports how that goes."""
    async with early.written():
        return await open_store(
            lambda opening: Store(path, job.metadata.uid or job.name, opening), early.tell, patience
        )


def _episode_book(job: RLJob, store: StoreThread, settings: Settings) -> EpisodeBook | None:
    """Return the book of a job with environments; None for others."""
    observers = {one.name: one.config for one in job.spec.observers}
    run = traced_run(job.metadata.uid or job.name, observers, os.environ)
    rules = BookRules(settings.environments, settings.seed, RunnerRules(traced_run=run))
    return EpisodeBook(store, rules, steady_clock()) if settings.environments else None


@dataclass(frozen=True)
class _Prompts:
    """Opens the prompts of a job for each trainer, and what works with them."""

    job: RLJob
    scratch: Path
    rewards: LazyRewards
    samples: SampleWriter
    book: EpisodeBook | None
    serve: ServeEpisodes | None
    closing: contextlib.AsyncExitStack

    async def open(self, model_files: dict[str, bytes]) -> PromptSource:
        """Open rewards and prompts. `model_files`: the trainer's, with the tokenizer."""
        await self.rewards.open(self.closing)
        prompts = await asyncio.to_thread(open_prompts, self.job.spec, model_files, self.scratch)
        self.samples.use_prompts(prompts)
        if self.book is not None:
            await self._open_episodes(self.book, prompts)
        return prompts

    async def _open_episodes(self, book: EpisodeBook, prompts: ObservedPrompts) -> None:
        """Let runners have the prompts; start gateway and runners the first time."""
        first = book.runners.prompts is None
        book.use_prompts(prompts)
        if first and self.serve is not None:
            await self.closing.enter_async_context(self.serve(book))


@dataclass(frozen=True)
class _Records:
    """Records of a run, beside its store: files of rounds, samples, the timeline, and the job's observers."""

    journals: Sequence[RoundJournal]
    samples: SampleWriter
    timeline: Timeline

    @classmethod
    def of(
        cls, job: RLJob, folder: Path, store: StoreAccess, control: ControlPlane, advantages: Advantages
    ) -> _Records:
        timeline, feed = Timeline(), ObserverFeed(observer_journals(job, folder))
        timeline.on_event = feed.event

        async def samples_of_spec() -> Samples:
            return (await control.observe()).job.spec.samples

        samples = SampleWriter(folder, store, job.spec.data.seed, advantages, samples_of_spec)
        samples.on_samples = feed.samples
        return cls([_round_files(folder, timeline), *feed.journals], samples, timeline)

    def observe(self, inputs: CoordinatorInputs, observers: Sequence[RoundObserver]) -> CoordinatorInputs:
        """Return the inputs of a coordinator that these records observe, and then `observers`."""
        journals, samples = self.journals, self.samples
        return replace(
            inputs,
            observers=[*journals, samples.round_closed, *observers],
            evaluation_observers=[*(journal.evaluated for journal in journals), samples.evaluated],
            on_end=[*(partial(asyncio.to_thread, journal.flush) for journal in journals), samples.finish],
            timeline=self.timeline,
        )

    def close_with(self, closing: contextlib.AsyncExitStack) -> None:
        """Have `closing` close the samples first, then the timeline, then the files."""
        for journal in self.journals:
            closing.push_async_callback(asyncio.to_thread, journal.close)
        closing.callback(self.timeline.close)
        closing.push_async_callback(self.samples.close)


def _round_files(folder: Path, timeline: Timeline) -> RoundJournal:
    """Return the journal of the files that every job has."""
    return RoundJournal(
        {
            "rounds.jsonl": lambda: RoundLog(folder),
            "tensorboard/": lambda: TensorBoard(folder / "tensorboard"),
            "timeline.jsonl": lambda: TimelineLog(folder, timeline),
        }
    )


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` beside the block, and cancel it at the end."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
