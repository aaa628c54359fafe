"""Generator: draws prompts from parameters; a Gaussian copula keeps the similarity within prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rljob_runtime.workloads.parameters import ToolUse, WorkloadParameters
from rljob_runtime.workloads.quantile_distribution import Distribution, Floats
from rljob_runtime.workloads.workload import Prompt, Response, ToolCall, Turn, random_stream


@dataclass(frozen=True)
class Generator:
    """A `Workload` without a trend: all steps have the same distributions and different draws.

    A prompt has a hardness, a normal score. The score of each response is √ρ · hardness + √(1−ρ) · noise. The
    distribution maps scores to lengths, so lengths have exactly the distribution, and scores the correlation ρ."""

    parameters: WorkloadParameters
    seed: int = 0

    @property
    def task(self) -> str:
        return self.parameters.task

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        parameters = self.parameters
        of_prompt = random_stream(self.seed, self.task, step, index, 0)
        hardness, turns_hardness, own = of_prompt.standard_normal(3)
        kept = None if parameters.kept_share is None else bool(of_prompt.random() < parameters.kept_share)
        length_score = _mix(parameters.input_correlation, hardness, own)
        (length,) = _tokens(parameters.input_tokens, np.array([length_score]))
        # One row of noise per response: more responses do not change the first rows.
        of_responses = random_stream(self.seed, self.task, step, index, 1 + attempt)
        noise = of_responses.standard_normal((responses, self._scores))
        seconds = self._reward_seconds(noise[:, 0])
        turns = self._turns(hardness, turns_hardness, noise[:, 1:])
        drawn = tuple(Response(turns, seconds) for turns, seconds in zip(turns, seconds, strict=True))
        return Prompt(index, length, drawn, kept)

    @cached_property
    def _scores(self) -> int:
        """Normal scores per response: reward, last turn, and for tools the count and three per call."""
        tool_use = self.parameters.tool_use
        return 2 if tool_use is None else 3 + 3 * (len(tool_use.turns.weights) - 1)

    def _reward_seconds(self, noise: Floats) -> list[float] | list[None]:
        distribution = self.parameters.reward_seconds
        return [None] * len(noise) if distribution is None else distribution.at_score(noise).tolist()

    def _turns(self, hardness: float, turns_hardness: float, noise: Floats) -> list[tuple[Turn, ...]]:
        correlation = np.sqrt(self.parameters.correlation)
        last = _tokens(self.parameters.output_tokens, _mix(correlation, hardness, noise[:, 0]))
        tool_use = self.parameters.tool_use
        if tool_use is None:
            return [(Turn(tokens),) for tokens in last]
        counts = tool_use.turns.at_score(_mix(np.sqrt(tool_use.turns_correlation), turns_hardness, noise[:, 1]))
        calls = noise[:, 2:].reshape(len(noise), -1, 3)
        scores = _mix(correlation, hardness, calls[:, :, 0])
        return [
            (*_calling_turns(tool_use, scores[row, : count - 1], calls[row, : count - 1, 1:]), Turn(last[row]))
            for row, count in enumerate(counts.tolist())
        ]


def _calling_turns(tool_use: ToolUse, scores: Floats, noise: Floats) -> list[Turn]:
    generated = _tokens(tool_use.call_tokens, scores)
    answers = _tokens(tool_use.answer_tokens, noise[:, 0])
    seconds = tool_use.seconds.at_score(noise[:, 1]).tolist()
    return [
        Turn(tokens, (ToolCall(waited, answer),))
        for tokens, answer, waited in zip(generated, answers, seconds, strict=True)
    ]


def _mix(share: float, common: float, own: Floats) -> Floats:
    """Return normal scores with the correlation `share` to the common one."""
    mixed: Floats = share * common + np.sqrt(1 - share * share) * own
    return mixed


def _tokens(distribution: Distribution, scores: Floats) -> list[int]:
    tokens: list[int] = np.maximum(1, np.rint(distribution.at_score(scores))).astype(np.int64).tolist()
    return tokens
