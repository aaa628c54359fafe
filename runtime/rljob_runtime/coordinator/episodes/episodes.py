"""Episodes: what the loops ask about responses of several turns; and its answers for a job whose responses have one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from rljob_api.status import EnvironmentMetric, RoundReport, StatusWarning
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.coordinator.episodes.episode_rows import (
    MOST_SAMPLES,
    SAMPLE_SECONDS,
    level_intervals,
    slowest_intervals,
)
from rljob_runtime.coordinator.episodes.metrics import MetricNames, episodes_report
from rljob_runtime.coordinator.episodes.replica import EpisodeBackend
from rljob_runtime.coordinator.episodes.runner_service import Warn
from rljob_runtime.coordinator.episodes.scorer import EpisodeScorer
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.generation.scoring import Scorer, TextScorer
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.trained_digests import trained_digests
from rljob_runtime.protocols import Backend, PromptSource, Rewards
from rljob_runtime.protocols.trajectory import Group, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.counts import told_forks
from rljob_runtime.scheduling.episodes.levels import Levels
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of

log = logging.getLogger(__name__)

MANY_FORKS = "ManyForks"
"""Reason of the warning about turns that open branches."""

Measure = Callable[[RoundReport, Store], RoundReport]
"""Adds the metrics of episodes to the report of a round that the store is about to close."""


class Episodes(Protocol):
    """How a job's responses are generated, scored and trained on."""

    def backend(self, backend: Backend) -> Backend:
        """Return the backend whose replicas generate the job's responses."""
        ...

    def scorer(self, prompts: PromptSource, rewards: Rewards) -> Scorer:
        """Return the scorer of the job's responses."""
        ...

    async def load(self, keys: Iterable[TrajectoryKey]) -> None:
        """Read what a former coordinator stored about these responses."""
        ...

    def tokens(self, key: TrajectoryKey) -> int | None:
        """Return the tokens of an episode so far, those of its prompt included; None for a response of one turn."""
        ...

    def group(self, group: Group) -> Group:
        """Return a group of loaded responses as it is trained on."""
        ...

    def digests(self, groups: Sequence[Group]) -> Mapping[TrajectoryKey, bytes]:
        """Return digests of what was trained on, for the audit. The event loop must not call it, see `measure`."""
        ...

    def measure(self, groups: Sequence[Group], timeline: Timeline) -> Measure:
        """Return what adds the metrics of a round that trained on these groups to its report.

        Its time grows with the tokens, so the event loop must not call it. The counts of failures begin from zero.
        The rows of the round's episodes are added to the timeline."""
        ...

    def cut(self, prompts: Iterable[PromptKey]) -> None:
        """End what is still generated for these prompts: it is not needed."""
        ...

    def release(self, keys: Iterable[TrajectoryKey]) -> None:
        """Let the runners of these responses have others: no engine generates these, unless they race again."""
        ...

    def drop(self, prompts: Iterable[PromptKey]) -> None:
        """Forget these prompts: trained, filtered, requeued or not needed."""
        ...

    async def run(self, warn: Warn) -> None:
        """Run background work until cancelled."""
        ...


class SingleTurns:
    """Every response is one turn, of its prompt."""

    def backend(self, backend: Backend) -> Backend:
        """Return it."""
        return backend

    def scorer(self, prompts: PromptSource, rewards: Rewards) -> Scorer:
        """Score each response by its text."""
        return TextScorer(prompts, rewards)

    async def load(self, keys: Iterable[TrajectoryKey]) -> None:
        """Do nothing: the response is all there is."""

    def tokens(self, key: TrajectoryKey) -> int | None:
        """Return None."""
        return None

    def group(self, group: Group) -> Group:
        """Return it."""
        return group

    def digests(self, groups: Sequence[Group]) -> Mapping[TrajectoryKey, bytes]:
        """Return none: the response itself is what was trained on."""
        return {}

    def measure(self, groups: Sequence[Group], timeline: Timeline) -> Measure:
        """Add nothing."""
        return lambda report, store: report

    def cut(self, prompts: Iterable[PromptKey]) -> None:
        """Do nothing: an abort has ended it."""

    def release(self, keys: Iterable[TrajectoryKey]) -> None:
        """Do nothing: there are no runners."""

    def drop(self, prompts: Iterable[PromptKey]) -> None:
        """Do nothing: nothing is kept."""

    async def run(self, warn: Warn) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


def _metrics_of(boundary: Boundary | None) -> Sequence[EnvironmentMetric]:
    report = boundary.report if boundary is not None else None
    episodes = report.episodes if report is not None else None
    return (episodes.metrics if episodes is not None else None) or ()


class ManyTurns:
    """Responses are episodes of environments, in `book`.

    `adds_rewards`: an environment's reward is a term of the job's rewards, and does not count in their place.
    `environments`: their number.
    """

    def __init__(self, book: EpisodeBook, adds_rewards: bool = False, environments: int = 1) -> None:
        self.book = book
        self._adds_rewards = adds_rewards
        self._metric_names = MetricNames(environments)
        self._measured = BookTotals()
        """The counts at the end of the round before."""
        self._levels = Levels(MOST_SAMPLES)
        self._warn: Warn = lambda reason, warning: None

    def backend(self, backend: Backend) -> Backend:
        """Let replicas generate the turns of episodes."""
        return EpisodeBackend(backend, self.book)

    def scorer(self, prompts: PromptSource, rewards: Rewards) -> Scorer:
        """Score each response by its environment, by the text of its last turn, or by both."""
        return EpisodeScorer(self.book, TextScorer(prompts, rewards), self._adds_rewards)

    async def load(self, keys: Iterable[TrajectoryKey]) -> None:
        """See `Episodes.load`."""
        await self.book.load(keys)

    def tokens(self, key: TrajectoryKey) -> int | None:
        """Return the tokens of the newest attempt; 0 before it is known."""
        return self.book.tokens(key)

    def group(self, group: Group) -> Group:
        """Return the group with the sequences of its episodes."""
        scored = []
        for one in group.responses:
            attempt = self.book.finished(one.response.key)
            assert attempt is not None, f"the episode of {one.response.key} is not known"
            response = one.response
            scored.append(ScoredEpisode(response.key, response.attempt, response.replica, attempt.episode, one.reward))
        return group_of(group.prompt, scored)

    def digests(self, groups: Sequence[Group]) -> Mapping[TrajectoryKey, bytes]:
        """See `Episodes.digests`."""
        return trained_digests(groups)

    def measure(self, groups: Sequence[Group], timeline: Timeline) -> Measure:
        """See `Episodes.measure`."""
        before, self._measured = self._measured, self.book.totals.copy()
        loads = self.book.runners.loads.take()
        since, trained = self._measured.since(before), []
        for scored in (one for group in groups for one in group.responses):
            attempt = self.book.finished(scored.response.key)
            assert attempt is not None, f"the episode of {scored.response.key} is not known"
            trained.append((attempt, scored.response))
        self._tell_forks(since)
        to_loop = asyncio.get_running_loop().time() - self.book.now()
        timeline.keep(level_intervals(self._levels, to_loop))
        timeline.keep(slowest_intervals((attempt for attempt, _ in trained), to_loop))

        def measured(report: RoundReport, store: Store) -> RoundReport:
            zeros = store.turns.without_right_to_reward(response.key for _, response in trained)
            if self._metric_names.is_empty:
                self._metric_names.admit(_metrics_of(store.boundaries.newest()))
            return report.model_copy(
                update={"episodes": episodes_report(trained, since, loads, zeros, self._metric_names)}
            )

        return measured

    def _tell_forks(self, since: BookTotals) -> None:
        text = told_forks(since.turns, since.forks)
        if text is not None:
            log.warning("%s", text)
        self._warn(MANY_FORKS, None if text is None else StatusWarning(reason=MANY_FORKS, message=text[:2048]))

    def cut(self, prompts: Iterable[PromptKey]) -> None:
        """See `Episodes.cut`."""
        self.book.cut(set(prompts))

    def release(self, keys: Iterable[TrajectoryKey]) -> None:
        """See `Episodes.release`."""
        self.book.release(keys)

    def drop(self, prompts: Iterable[PromptKey]) -> None:
        """See `Episodes.drop`."""
        self.book.drop(set(prompts))

    async def run(self, warn: Warn) -> None:
        """See `Episodes.run`."""
        self._warn = warn
        await alongside(self.book.run(warn), self._sample())

    async def _sample(self) -> None:
        """Sample where open episodes are, until cancelled."""
        while True:
            now = self.book.now()
            if self._levels.due(now):
                self._levels.add(now, self.book.levels())
            await asyncio.sleep(SAMPLE_SECONDS)
