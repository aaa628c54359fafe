"""One replica and its engine as the product runs them, given loads by hand: dummy prompts and responses of exact
lengths, every step timed."""

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
"""The coordinator's."""
PASS_TOKENS = 2048
"""The least that engines prefill in a pass."""
LEAST_TOKEN = 3
"""Below it tokenizers keep their special tokens."""


def tolerance(tokens: int) -> int:
    """Tokens that a sequence may make beyond the steps asked for while so many prompt tokens are computed: prefill
    takes several passes, in which those who are there already decode."""
    return 4 + -(-tokens // PASS_TOKENS)


class ProfilingHarness:
    """`make_engine(tensor_parallel, devices)` is the replica's; prompts are of tokens below `vocabulary`, no two alike,
    so that no prefix cache helps. Use from one event loop, and `close` it."""

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
            engine: SleepableEngine = TimedEngine(make_engine(tensor_parallel, devices), clock, self._steps)  # type: ignore[assignment]
            return engine

        self._replica = RolloutReplica("profile", timed, frozenset(), close_maker)

    async def switch_layout(self, tensor_parallel: int) -> int:
        """Go over to this layout; the tokens that its KV cache holds. Raises `Refused` where no engine starts."""
        await self._replica.lay_out(TERM, tensor_parallel)
        await self._replica.load(TERM, VERSION)
        return (await self._replica.poll(TERM, self._cursor, 0.0)).stats.kv_tokens

    async def sustain(self, batch: int, context: int, steps: int) -> list[Step]:
        """Have so many sequences take `steps` decode steps together after prompts of `context` tokens, then drop them.
        All steps it took."""
        keys = await self._submit(context, [steps + tolerance(batch * context)] * batch)
        ended = 0
        # One step more than asked for: what the last one costs is known when the next begins.
        while len(decoding(self._steps, batch)) <= steps and ended < batch:
            ended += await self._ended(keys)
        await self._replica.abort(TERM, dict.fromkeys(keys, 1))
        return list(self._steps)

    async def run_round(self, prompt: int, lengths: Sequence[int]) -> float:
        """Seconds in which responses of these lengths come, all launched at once after prompts of `prompt` tokens."""
        began = self._clock()
        keys = await self._submit(prompt, lengths)
        left = len(keys)
        while left:
            left -= await self._ended(keys)
        return self._clock() - began

    async def close(self) -> None:
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
        """Hear of the replica as the coordinator does; how many of these came to their ends. Others are of a former
        run, whose last tokens nobody waited for."""
        report = await self._replica.poll(TERM, self._cursor, POLL_SECONDS)
        self._cursor = report.cursor
        return sum(delta.finish_reason is not None and delta.key in keys for delta in report.deltas)
