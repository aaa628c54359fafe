"""Scoring: requests the reward of each response when it finishes, while others still generate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.reporting.timeline import REWARDS, Timeline
from rljob_runtime.protocols import PeerError, PromptSource, RewardFailed, Rewards
from rljob_runtime.protocols.rewards import ResponseAborted
from rljob_runtime.protocols.trajectory import Response, TrajectoryKey
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardReceived:
    """Event: a response has its reward, or a failure in its place."""

    response: Response
    reward: float | RewardFailure


class Scorer(Protocol):
    """Scores responses."""

    async def score(self, response: Response) -> float:
        """Return the reward, as `Rewards.score` does. Raises `PeerError`."""
        ...


class TextScorer:
    """Scores a response by its text."""

    def __init__(self, prompts: PromptSource, rewards: Rewards) -> None:
        self._prompts = prompts
        self._rewards = rewards

    async def score(self, response: Response) -> float:
        """See `Scorer.score`."""
        return await self._rewards.score(*await self._read(response))

    async def score_with(self, response: Response, environment_reward: float | None) -> float:
        """Return the reward of an episode's last answer, in which rules of kind Environment count what is given."""
        return await self._rewards.score(*await self._read(response), environment_reward)

    async def score_text(self, key: TrajectoryKey, text: str, environment_reward: float | None) -> float:
        """Return the reward of a text that a program states as a response's answer. The rest is as of `score_with`."""
        return await self._rewards.score(self._prompts.prompt(key.prompt), text, environment_reward)

    async def _read(self, response: Response) -> tuple[object, str]:
        """Return the prompt and the text of a response."""
        try:
            text = await self._prompts.decode(response.token_ids)
        except Exception as error:  # a tokenizer may raise anything for an unknown id
            raise RewardFailed(f"its tokens cannot be decoded: {error!r}", by_response=True) from error
        return self._prompts.prompt(response.key.prompt), text


class RewardRequests:
    """The reward requests of one stage. `post` receives an event for each."""

    def __init__(
        self,
        scorer: Scorer,
        stats: GenerationStats,
        post: Callable[[RewardReceived | Broken], None],
        timeline: Timeline,
    ) -> None:
        self._scorer = scorer
        self._stats = stats
        self._post = post
        self._timeline = timeline
        self._waiting = 0
        self._tasks = StageTasks(post)

    def start(self, response: Response) -> None:
        """Request the reward of a response."""
        self._tasks.start(self._score(response), name=f"score-{response.key}")
        self._count(1)

    async def close(self) -> None:
        """Cancel all requests."""
        self._count(-self._waiting)
        await self._tasks.close()

    def _count(self, change: int) -> None:
        self._waiting += change
        self._timeline.busy(REWARDS, "rewards", held=self._waiting > 0)

    def _end(self, received: RewardReceived) -> None:
        self._count(-1)
        self._post(received)

    async def _score(self, response: Response) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            reward: float | RewardFailure = await self._scorer.score(response)
        except PeerError as error:
            log.warning("reward of %s failed, the sample is aborted: %s", response.key, error)
            reward = failure_of(error)
        else:
            self._stats.rewards += 1
            self._stats.reward_seconds += clock() - began
        self._end(RewardReceived(response, reward))


def failure_of(error: PeerError) -> RewardFailure:
    """Return the failure of a reward that was requested."""
    if isinstance(error, ResponseAborted):
        return RewardFailure(ENVIRONMENT_FAILED, str(error), counts=error.counts)
    return RewardFailure(REWARD_FAILED, str(error), isinstance(error, RewardFailed) and error.by_response)
