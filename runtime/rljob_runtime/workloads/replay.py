"""Replay: draws prompts from a trace (PolyTrace's workload sampler, §5)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rljob_runtime.workloads.errors import TraceError
from rljob_runtime.workloads.quantile_distribution import Floats
from rljob_runtime.workloads.trace import Step, Trace
from rljob_runtime.workloads.workload import Prompt, Response, random_stream


class Replay:
    """A `Workload` of recorded prompts, each with its own responses only, so the similarity is the data's.

    Step `n` draws from the n-th recorded step, cyclically; `Trace.pooled()` draws from all. Prompts and responses are
    shuffled, and reused in a new order only when all were drawn: a batch of the recorded size is the recorded step in
    another order. More responses than recorded repeat lengths, so none exceeds the longest recorded."""

    def __init__(self, trace: Trace, seed: int = 0):
        self._trace = trace
        self._seed = seed
        self._order = lru_cache(maxsize=8)(self._shuffled)

    @property
    def task(self) -> str:
        return self._trace.task

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        recorded = self._recorded(step)
        turn, place = divmod(index, len(recorded.prompts))
        prompt = recorded.prompts[self._order(step, turn)[place]]
        random = random_stream(self._seed, self.task, step, index, attempt)
        drawn: list[Response] = []
        while len(drawn) < responses:
            drawn += [prompt.responses[place] for place in random.permutation(len(prompt.responses))]
        return Prompt(index, prompt.input_tokens, tuple(drawn[:responses]), prompt.kept)

    def _recorded(self, step: int) -> Step:
        return self._trace.steps[step % len(self._trace.steps)]

    def _shuffled(self, step: int, turn: int) -> list[int]:
        random = random_stream(self._seed, self.task + "/order", step, turn)
        order: list[int] = random.permutation(len(self._recorded(step).prompts)).tolist()
        return order


class RecordedToolLatencies:
    """PolyTrace's tool-latency sampler (§5): draws seconds of recorded calls, so that no tool has to run.

    A generator's counterpart is `parameters.tool_use.seconds`; both draw alike. Raises `TraceError` for a trace without
    tool calls."""

    def __init__(self, trace: Trace):
        self._seconds = np.array([call.seconds for call in trace.tool_calls()])
        if not len(self._seconds):
            raise TraceError(f"{trace.task} records no tool calls; a multi-turn trace would be right")

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        return random.choice(self._seconds, size)
