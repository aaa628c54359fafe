"""Rewards of finished responses, each asked for as soon as it ends, while others still generate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.protocols import PeerError, PromptSource, RewardFailed, Rewards
from rljob_runtime.protocols.trajectory import Response

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardReceived:
    """`reward` is None where none could be had: a failure of ours. `by_response`: one that the text brought about."""

    response: Response
    reward: float | None
    by_response: bool = False


class RewardRequests:
    """`post` is told of each."""

    def __init__(
        self,
        prompts: PromptSource,
        rewards: Rewards,
        tally: GenerationStats,
        post: Callable[[RewardReceived | Broken], None],
    ) -> None:
        self._prompts = prompts
        self._rewards = rewards
        self._tally = tally
        self._post = post
        self._tasks = StageTasks(post)

    def start(self, response: Response) -> None:
        """Ask for the reward of this one."""
        self._tasks.start(self._ask(response), name=f"score-{response.key}")

    async def close(self) -> None:
        """Nobody waits for rewards any more."""
        await self._tasks.close()

    async def _ask(self, response: Response) -> None:
        prompt = self._prompts.prompt(response.key.prompt)
        try:
            text = await self._prompts.decode(response.token_ids)
        except Exception as error:  # what a tokenizer says of an id that has no text is its own affair
            log.warning("%s cannot be decoded, the sample is aborted: %r", response.key, error)
            self._post(RewardReceived(response, None, by_response=True))
            return
        ended, by_response = asyncio.get_running_loop().time(), False
        try:
            reward: float | None = await self._rewards.score(prompt, text)
        except PeerError as error:
            log.warning("reward of %s failed, the sample is aborted: %s", response.key, error)
            reward, by_response = None, isinstance(error, RewardFailed) and error.by_response
        else:
            self._tally.rewards += 1
            self._tally.reward_seconds += asyncio.get_running_loop().time() - ended
        self._post(RewardReceived(response, reward, by_response))
