"""Rewards of finished responses, each asked for as soon as it ends, while others still generate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from rljob_runtime.coordinator.protocols import PeerError, PromptSource, Rewards
from rljob_runtime.coordinator.tally import Tally
from rljob_runtime.scheduling.trajectory import Response

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """`reward` is None where none could be had: a failure of ours."""

    response: Response
    reward: float | None


class Scoring:
    """`post` is told of each."""

    def __init__(self, prompts: PromptSource, rewards: Rewards, tally: Tally, post: Callable[[Scored], None]) -> None:
        self._prompts = prompts
        self._rewards = rewards
        self._tally = tally
        self._post = post
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, response: Response) -> None:
        """Ask for the reward of this one."""
        task = asyncio.create_task(self._ask(response), name=f"score-{response.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Nobody waits for rewards any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, response: Response) -> None:
        prompt = self._prompts.prompt(response.key.prompt)
        text = await self._prompts.decode(response.token_ids)
        ended = asyncio.get_running_loop().time()
        try:
            reward: float | None = await self._rewards.score(prompt, text)
        except PeerError as error:
            log.warning("reward of %s failed, the sample is aborted: %s", response.key, error)
            reward = None
        else:
            self._tally.rewards += 1
            self._tally.reward_seconds += asyncio.get_running_loop().time() - ended
        self._post(Scored(response, reward))
