"""Verifiers harness: episodes of a `verifiers` environment, each in a worker process that has the package loaded.

The environment owns the loop and the reward. Its model is this attempt's address at the gateway, so the tokens are the
job's. The workers have nothing of the runner's environment but the path, and a failure there is a failure of ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import httpx

from rljob_env.config import EnvironmentConfig
from rljob_env.conversation import conversation_to_score
from rljob_env.episode import Assignment, Limit, Report
from rljob_env.failures import EpisodeOver, Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.workers import CallFailed, WorkerPool, WorkerSettings
from rljob_env.results import reward_and_metrics
from rljob_env.scoring import Scorer
from rljob_env.verifiers.episode import task_of

log = logging.getLogger(__name__)

LOAD, PLAY = "rljob_env.verifiers.episode:load", "rljob_env.verifiers.episode:play"
INHERITED = ("SSL_CERT_DIR", "SSL_CERT_FILE", "UV_CACHE_DIR", "UV_OFFLINE")
"""How harnesses of the package find their programs: each worker has a home of its own, without a cache."""
LOAD_SHARE = 0.1
"""Of an episode's time: a load that took more is why the episode ran out of it. The next one finds it loaded."""
LOAD_SECONDS = 1800.0
"""Longest time of a load, which goes on after the attempt that began it: else each attempt would begin to load it."""
CURE = "raise timeoutSeconds, or keep what it loads in the image, and name that place in env of the pod template"


class VerifiersHarness:
    """Plays tasks of one environment. It scores an episode within `reward_seconds` of its deadline."""

    def __init__(self, gateway: httpx.AsyncClient, config: EnvironmentConfig, root: Path, guard: Guard) -> None:
        assert config.verifiers is not None
        self._gateway_http = gateway
        self._config = config
        self._verifiers = config.verifiers
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        variables = {**inherited, **config.variables}
        self.workers = WorkerPool(WorkerSettings(root, (LOAD, PLAY), variables, Part.ENVIRONMENT, guard))
        self.scorer = Scorer(config, root, guard)
        self._left: set[asyncio.Task[Any]] = set()
        """Loads whose attempts have ended. Later attempts wait for them."""
        self._cause = ""
        """Why the last of these failed; empty if it did not."""

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode."""
        given, seconds, began = self._given(assignment), assignment.seconds_left(), time.monotonic()
        await self._load(given, seconds)
        loaded = time.monotonic() - began
        try:
            bound = assignment.seconds_left() + self._config.reward_seconds
            found = await self.workers.evaluate(PLAY, [given], bound)
        except TimeoutError as error:
            most = f"rewardSeconds ({self._config.reward_seconds:g} s)"
            text = f"the environment did not end within {most} of the deadline"
            raise Failed(Part.ENVIRONMENT, text) from error
        except CallFailed as error:
            raise Failed(Part.ENVIRONMENT, str(error)) from error
        if "over" in found:
            raise EpisodeOver(found["over"])
        if "failed" in found:
            raise Failed(Part.ENVIRONMENT, found["failed"])
        limit = None if found["limit"] is None else Limit(found["limit"])
        if limit is Limit.SECONDS and loaded > LOAD_SHARE * seconds:
            took = f"took {loaded:.0f} s of the episode's {seconds:.0f} s to load, and its time was over"
            raise Failed(Part.ENVIRONMENT, f"the environment {took}: {CURE}")
        try:
            reward, metrics = reward_and_metrics({"reward": found["reward"], "metrics": found["metrics"]})
        except ValueError as error:
            raise Failed(Part.ENVIRONMENT, f"the environment's {error}") from error
        metrics["env_seconds"] = time.monotonic() - began
        more = dict[str, float]()
        if reward is None and self.scorer.has_function:
            messages, answer = await conversation_to_score(self._gateway_http, assignment)
            reward, more = await self.scorer.score(assignment, messages, answer)
        return Report(reward, metrics | more, detail=found["detail"], limit=limit)

    async def _load(self, given: dict[str, Any], seconds: float) -> None:
        """Let a worker load the environment; the worker that becomes free last is the next that is asked."""
        try:
            async with asyncio.timeout(seconds):  # the start of a worker is a part of it
                if self._left and not self.workers.has_idle:
                    await self._until_ended(self._left.pop())
                load = asyncio.create_task(self.workers.evaluate(LOAD, [given], seconds + LOAD_SECONDS))
                load.add_done_callback(self._end)
                await self._until_ended(load)
                load.result()
        except TimeoutError as error:
            text = f"the environment did not load within the episode's {seconds:.0f} s: {CURE}"
            before = f"; an earlier load failed: {self._cause}" if self._cause else ""
            raise Failed(Part.ENVIRONMENT, f"{text}{before}") from error
        except CallFailed as error:
            raise Failed(Part.ENVIRONMENT, str(error)) from error

    async def _until_ended(self, load: asyncio.Task[Any]) -> None:
        """Wait for a load. If the attempt ends first, it goes on for a later one."""
        try:
            await asyncio.wait({load})
        finally:
            if not load.done():
                self._left.add(load)

    def _end(self, load: asyncio.Task[Any]) -> None:
        self._left.discard(load)
        error = None if load.cancelled() else load.exception()
        self._cause = "" if error is None else str(error) or type(error).__name__
        if error is not None:
            log.warning("the environment did not load: %s", self._cause)

    async def close(self) -> None:
        """End the processes."""
        if left := set(self._left):
            for load in left:
                load.cancel()
            await asyncio.wait(left)
        await self.workers.close()
        await self.scorer.close()

    def _given(self, assignment: Assignment) -> dict[str, Any]:
        try:
            task = task_of(assignment.record)
        except ValueError as error:
            raise Failed(Part.ENVIRONMENT, str(error)) from error
        return {
            "id": self._verifiers.id,
            "args": dict(self._verifiers.args),
            "task": task,
            "model": assignment.model,
            "baseUrl": assignment.base_url,
            "apiKey": assignment.api_key,
            "maxTurns": self._config.max_turns,
            "deadline": assignment.deadline,
        }
