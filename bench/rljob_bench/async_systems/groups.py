"""The prompts of a job, in the order in which they are drawn: every system of a comparison has the same ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rljob_bench.async_systems.turns import EpisodeRequest, Stretch, stretches
from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.workloads import Workload


@dataclass(frozen=True, slots=True)
class Drawn:
    """A prompt with the lengths of its responses, in tokens, and those of their turns.

    `response_tokens` are trained on: where a response has several turns, they include the answers of its tools."""

    number: int
    prompt_tokens: int
    response_tokens: tuple[int, ...]
    turns: tuple[tuple[Stretch, ...], ...] = ()
    """By response; empty where each has one turn."""

    @property
    def tokens(self) -> int:
        """Tokens trained on: each response with its prompt."""
        return self.prompt_tokens * len(self.response_tokens) + sum(self.response_tokens)

    def generated(self, sample: int) -> int:
        """Return the tokens of a response that an engine generates."""
        return sum(one.tokens for one in self.turns[sample]) if self.turns else self.response_tokens[sample]

    def spans(self) -> list[Stretch]:
        """Return all that engines generate, each behind the tokens of its response that precede it."""
        return [one for turns in self.turns for one in turns] or [Stretch(0, one) for one in self.response_tokens]

    def requests(self) -> list[Request]:
        """Return the requests for an engine; the id of each is (number, sample)."""
        if self.turns:
            return [
                EpisodeRequest((self.number, sample), self.prompt_tokens, turns[-1].end, turns=turns)
                for sample, turns in enumerate(self.turns)
            ]
        return [
            Request((self.number, sample), self.prompt_tokens, tokens)
            for sample, tokens in enumerate(self.response_tokens)
        ]


class Prompts:
    """Draws prompt after prompt and keeps them.

    `round_prompts` make a step of the workload; longer prompts and responses are cut.
    """

    def __init__(
        self, workload: Workload, round_prompts: int, responses: int, longest_prompt: int, longest_response: int
    ) -> None:
        self.round_prompts = round_prompts
        self.responses = responses
        self._workload = workload
        self.longest_response = longest_response
        self._longest_prompt = longest_prompt
        self._drawn: list[Drawn] = []

    def __getitem__(self, number: int) -> Drawn:
        while len(self._drawn) <= number:
            self._drawn.append(self._draw(len(self._drawn)))
        return self._drawn[number]

    def batch(self, number: int) -> list[Drawn]:
        """Return the prompts of one round."""
        return [self[number * self.round_prompts + place] for place in range(self.round_prompts)]

    def _draw(self, number: int) -> Drawn:
        prompt = self._workload.prompt(*divmod(number, self.round_prompts), self.responses)
        turns = tuple(stretches(one.turns, self.longest_response) for one in prompt.responses)
        return Drawn(
            number,
            min(prompt.input_tokens, self._longest_prompt),
            tuple(one[-1].end for one in turns),
            turns if any(len(one) > 1 for one in turns) else (),
        )


def number_of(request: Hashable) -> int:
    """Return the number of the prompt that a response answers, from the id of its request."""
    assert isinstance(request, tuple)
    number: int = request[0]
    return number
