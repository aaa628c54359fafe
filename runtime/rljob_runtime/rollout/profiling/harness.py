"""Profiling harness: one replica and its engine as in production, driven by hand with exact loads.

Prompts and responses are dummies of exact lengths, and every step is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from random import Random

from rljob_runtime.protocols import GenerateRequest
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.engines.base import SleepableEngine
from rljob_runtime.rollout.profiling.static_weights import VERSION
from rljob_runtime.rollout.profiling.timed_engine import Step, TimedEngine, decoding
from rljob_runtime.rollout.replica import RolloutReplica

TERM = 1
POLL_SECONDS = 0.5
"""The coordinator's poll interval."""
PASS_TOKENS = 2048
"""Smallest number of tokens that engines prefill in one pass."""
LEAST_TOKEN = 3
"""Tokenizers keep their special tokens below it."""


def tolerance(tokens: int) -> int:
    """Return how many tokens a sequence may make beyond the requested steps while `tokens` prompt tokens are prefilled.

    Prefill takes several passes, and sequences that are complete already decode in them.
    """
    return 4 + -(-tokens // PASS_TOKENS)


class ProfilingHarness:
    """Replica driven by one event loop; `close` it.

    `make_engine(tensor_parallel, devices)` is the replica's. Prompts consist of tokens below `vocabulary`. All prompts
    differ, so that no prefix cache helps.
    """

    def __init__(
        self,
        make_engine: Callable[[int, Sequence[str]], SleepableEngine],
        close_maker: Callable[[], None],
        vocabulary: int,
        clock: Callable[[], float],
    ) -> None:
        self._steps: list[Step] = []
        self._clock = clock
        self._vocabulary = vocabulary
        self._random = Random(0)
        self._runs = itertools.count()
        self._cursor = 0

        def timed(tensor_parallel: int, devices: Sequence[str]) -> SleepableEngine:
            engine: SleepableEngine = TimedEngine(make_engine(tensor_parallel, devices), clock, self._steps)
            return engine

        self._replica = RolloutReplica("profile", timed, frozenset(), close_maker)

    async def switch_layout(self, tensor_parallel: int) -> int:
        """Switch to this layout and return the tokens that its KV cache holds. Raises `Refused` if no engine starts."""
        await self._replica.switch_layout(TERM, tensor_parallel)
        await self._replica.load(TERM, VERSION)
        return (await self._replica.poll(TERM, self._cursor, 0.0)).stats.kv_tokens

    async def sustain(self, batch: int, context: int, steps: int) -> list[Step]:
        """Keep `batch` sequences decoding together for `steps` steps after prompts of `context` tokens, then drop them.

        Returns all steps that were taken.
        """
        keys = await self._submit(context, [steps + tolerance(batch * context)] * batch)
        ended = 0
        # One step more than requested: the cost of the last step is known when the next step begins.
        while len(decoding(self._steps, batch)) <= steps and ended < batch:
            ended += await self._ended(keys)
        await self._replica.abort(TERM, dict.fromkeys(keys, 1))
        return list(self._steps)

    async def run_round(self, prompt: int, lengths: Sequence[int]) -> float:
        """Return the seconds until responses of these lengths are complete, launched together after `prompt` tokens."""
        began = self._clock()
        keys = await self._submit(prompt, lengths)
        left = len(keys)
        while left:
            left -= await self._ended(keys)
        return self._clock() - began

    async def close(self) -> None:
        """Close the replica and its engines."""
        await self._replica.close()

    async def _submit(self, prompt: int, lengths: Sequence[int]) -> frozenset[TrajectoryKey]:
        self._steps.clear()
        run = next(self._runs)
        requests = [
            GenerateRequest(
                key=TrajectoryKey(PromptKey(run, number), 0),
                attempt=1,
                prompt_token_ids=tuple(self._random.randrange(LEAST_TOKEN, self._vocabulary) for _ in range(prompt)),
                sampling=Sampling(tokens, 1.0, number, ignore_eos=True),
                weight_version=VERSION,
            )
            for number, tokens in enumerate(lengths)
        ]
        await self._replica.submit(TERM, requests)
        return frozenset(request.key for request in requests)

    async def _ended(self, keys: Collection[TrajectoryKey]) -> int:
        """Poll the replica like the coordinator; return how many of `keys` have ended.

        Other deltas belong to an earlier run, which does not wait for its last tokens.
        """
        report = await self._replica.poll(TERM, self._cursor, POLL_SECONDS)
        self._cursor = report.cursor
        return sum(delta.finish_reason is not None and delta.key in keys for delta in report.deltas)
