"""Inputs: prompts and rewards as the spec defines them, with the coordinator's errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from rljob_api.spec import RLJobSpec
from rljob_runtime.protocols import (
    PromptRecord,
    PromptsNotUsable,
    RewardFailed,
    RewardsNotUsable,
    RewardsUnavailable,
)
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from rljob_runtime.rewards import (
    CannotSandbox,
    InvalidReward,
    RewardPool,
    RewardServerClient,
    RewardsNotReady,
    rules_of,
)
from rljob_runtime.rewards.offload import offload
from rljob_runtime.rewards.references import reference_problem

T = TypeVar("T")

LONGEST_DRAW_SECONDS = 0.02
"""Seconds for which records are made before other tasks run."""


class PromptDrawer(Protocol):
    """Prompts that are made when they are drawn; `data.PromptSet` implements it."""

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]: ...

    def prompt(self, key: PromptKey) -> PromptRecord: ...

    def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    @property
    def skipped(self) -> int: ...


class ObservedPrompts:
    """A prompt source whose data errors end the job with their message. Long work does not block the event loop."""

    def __init__(self, source: PromptDrawer, error: type[Exception]) -> None:
        self._source = source
        self._error = error

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        return self._raising_unusable(lambda: self._source.draw(cursor, count))

    async def take(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        keys: list[PromptKey] = []
        clock = asyncio.get_running_loop().time
        began = clock()
        while len(keys) < count:
            fresh, cursor = self.draw(cursor, 1)
            keys += fresh
            if clock() - began > LONGEST_DRAW_SECONDS:
                await asyncio.sleep(0)
                began = clock()
        return tuple(keys), cursor

    def prompt(self, key: PromptKey) -> PromptRecord:
        return self._raising_unusable(lambda: self._source.prompt(key))

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        """Return a drawn prompt as chat messages."""
        return await offload(self._raising_unusable, lambda: self._source.messages(key))

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await offload(self._source.decode, token_ids)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._source.stop_token_ids

    @property
    def skipped(self) -> int:
        return self._source.skipped

    def _raising_unusable(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._error as error:
            raise PromptsNotUsable(str(error)) from error


def open_prompts(spec: RLJobSpec, model_files: dict[str, bytes], scratch: Path) -> ObservedPrompts:
    """Open the job's prompts with the tokenizer in the model files. Blocks for seconds. Raises `PromptsNotUsable`."""
    from rljob_runtime.data.errors import DataError
    from rljob_runtime.data.prompts import open_prompts as open_data

    problem = reference_problem(rules_of(spec.rewards))
    try:
        return ObservedPrompts(open_data(spec.data, model_files, scratch, problem), DataError)
    except DataError as error:
        raise PromptsNotUsable(str(error)) from error


class LazyRewards:
    """The rewards of a job. `open` starts the workers, or connects to `reward_server`; its exit stack ends them."""

    def __init__(self, spec: RLJobSpec, reward_server: RewardServerClient | None = None) -> None:
        self._spec = spec
        self._reward_server = reward_server
        self._pool: RewardPool | None = None

    async def open(self, closing: AsyncExitStack) -> None:
        """Open the rewards unless they are open.

        Raises `RewardsNotUsable`, and `RewardsUnavailable` if a later try may succeed.
        """
        if self._pool is not None:
            return
        try:
            self._pool = await closing.enter_async_context(
                RewardPool(rules_of(self._spec.rewards), reward_server=self._reward_server)
            )
        except (CannotSandbox, RewardsNotReady) as error:
            raise RewardsUnavailable(error.reason, str(error)) from error
        except InvalidReward as error:
            raise RewardsNotUsable(str(error)) from error

    async def score(self, prompt: object, response_text: str) -> float:
        """See `protocols.Rewards`."""
        if self._pool is None:
            raise RewardFailed("the rewards are not open")
        return await self._pool.score(prompt, response_text)

    def figures(self) -> RewardStats:
        """See `protocols.Rewards`."""
        return self._pool.figures() if self._pool is not None else RewardStats()

    def take_anchors(self) -> Anchors:
        """See `protocols.Rewards`."""
        return self._pool.take_anchors() if self._pool is not None else {}

    def restore_anchors(self, anchors: Anchors) -> None:
        """See `protocols.Rewards`."""
        if self._pool is not None:
            self._pool.restore_anchors(anchors)
