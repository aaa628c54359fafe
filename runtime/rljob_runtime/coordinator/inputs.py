"""Inputs: prompts and rewards as the spec defines them, with the coordinator's errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import Evaluation
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
    rules_of_sources,
)
from rljob_runtime.rewards.offload import offload
from rljob_runtime.rewards.references import reference_problem
from rljob_runtime.scheduling.shares import shares_of

if TYPE_CHECKING:
    from rljob_runtime.data import JobPrompts

T = TypeVar("T")

LONGEST_DRAW_SECONDS = 0.02
"""Seconds for which records are made before other tasks run."""


class ObservedPrompts:
    """A prompt source whose data errors end the job with their message. Long work does not block the event loop."""

    def __init__(self, source: JobPrompts, error: type[Exception]) -> None:
        self._source = source
        self._error = error
        self._held_since = -math.inf
        """When other tasks had their turn last. Many short draws in a row hold the event loop as a long one does."""

    def draw(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        return self._raising_unusable(lambda: self._source.draw(cursor, count, source))

    async def take(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        keys: list[PromptKey] = []
        clock = asyncio.get_running_loop().time
        while len(keys) < count:
            fresh, cursor = self.draw(cursor, 1, source)
            keys += fresh
            if clock() - self._held_since > LONGEST_DRAW_SECONDS:
                await asyncio.sleep(0)
                self._held_since = clock()
        return tuple(keys), cursor

    def prompt(self, key: PromptKey) -> PromptRecord:
        return self._raising_unusable(lambda: self._source.prompt(key))

    def evaluation_prompts(self, name: str) -> Sequence[int]:
        """Return the numbers of the records of an evaluation's prompts."""
        return self._raising_unusable(lambda: self._source.evaluation_prompts(name))

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        """Return a drawn prompt as chat messages."""
        return await offload(self._raising_unusable, lambda: self._source.messages(key))

    def environment(self, key: PromptKey) -> str:
        """Return the name of a drawn prompt's environment, in a job with environments."""
        return self._raising_unusable(lambda: self._source.environment(key))

    async def record(self, key: PromptKey) -> Mapping[str, object]:
        """Return a drawn prompt's record as JSON values."""
        return await offload(self._raising_unusable, lambda: self._source.record(key))

    async def prompt_tokens(self, keys: Sequence[PromptKey]) -> list[int]:
        """Return the tokens of each drawn prompt."""

        def count() -> list[int]:
            return [len(self._source.prompt(key).token_ids) for key in keys]

        return await offload(self._raising_unusable, count)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await offload(self._source.decode, token_ids)

    async def read_texts(self, work: Callable[[JobPrompts], T]) -> T:
        """Run `work` on messages and texts in the thread of texts, in one turn of it."""
        return await offload(self._raising_unusable, lambda: work(self._source))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._source.stop_token_ids

    @property
    def skipped(self) -> int:
        return self._source.skipped

    @property
    def overlaps(self) -> Mapping[str, int]:
        return self._source.overlaps

    def _raising_unusable(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._error as error:
            raise PromptsNotUsable(str(error)) from error


def open_prompts(spec: RLJobSpec, model_files: dict[str, bytes], scratch: Path) -> ObservedPrompts:
    """Open the job's prompts with the tokenizer in the model files. Blocks for seconds. Raises `PromptsNotUsable`."""
    from rljob_runtime.data import open_prompts as open_data
    from rljob_runtime.data.errors import DataError
    from rljob_runtime.data.job_prompts import EvaluationData

    problem = reference_problem(rules_of_sources(spec))
    held_out = spec.data.held_out.fraction if spec.data.held_out is not None else None
    evaluations = [
        EvaluationData(
            f"spec.evaluation[{number}]",
            one.name,
            one.prompts.own,
            one.max_prompts,
            _drawn(spec, one),
            one.rewards is not None,
        )
        for number, one in enumerate(spec.evaluation)
    ]
    try:
        environments = tuple(environment.name for environment in spec.environments)
        opened = open_data(spec.data, model_files, scratch, problem, held_out, evaluations, environments)
        return ObservedPrompts(opened, DataError)
    except DataError as error:
        raise PromptsNotUsable(str(error)) from error


def _drawn(spec: RLJobSpec, evaluation: Evaluation) -> tuple[str, ...]:
    """Return the source of each prompt of an evaluation that asks held-out records."""
    if evaluation.prompts.own is not None:
        return ()
    if evaluation.prompts.source is not None:
        return (evaluation.prompts.source,) * evaluation.max_prompts
    return shares_of(spec.data).sequence({}, evaluation.max_prompts)


class LazyRewards:
    """The rewards of a job. `open` starts the workers, or connects to `reward_server`; its exit stack ends them.

    A job whose environments give all rewards has no rule, and needs no worker.
    """

    def __init__(self, spec: RLJobSpec, reward_server: RewardServerClient | None = None) -> None:
        self._spec = spec
        self._reward_server = reward_server
        self._pool: RewardPool | None = None

    async def open(self, closing: AsyncExitStack) -> None:
        """Open the rewards unless they are open.

        Raises `RewardsNotUsable`, and `RewardsUnavailable` if a later try may succeed.
        """
        if self._pool is not None or not self._spec.rewards:
            return
        try:
            self._pool = await closing.enter_async_context(
                RewardPool(rules_of_sources(self._spec), reward_server=self._reward_server)
            )
        except (CannotSandbox, RewardsNotReady) as error:
            raise RewardsUnavailable(error.reason, str(error)) from error
        except InvalidReward as error:
            raise RewardsNotUsable(str(error)) from error

    async def score(self, prompt: object, response_text: str, environment_reward: float | None = None) -> float:
        """See `protocols.Rewards`. Without a rule a response has no reward, and never a reward of 0."""
        if not self._spec.rewards:
            told = "its environment gave no reward, and spec.rewards has no rule"
            raise RewardFailed(told, by_response=True)
        if self._pool is None:
            raise RewardFailed("the rewards are not open")
        return await self._pool.score(prompt, response_text, environment_reward)

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
