"""The prompts of a job, in the order in which they are drawn: every system of a comparison has the same ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rljob_runtime.perf_model.engine_simulator import Request
from rljob_runtime.workloads import Workload


@dataclass(frozen=True, slots=True)
class Drawn:
    """A prompt with the lengths of its responses, in tokens."""

    number: int
    prompt_tokens: int
    response_tokens: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens trained on: each response with its prompt."""
        return self.prompt_tokens * len(self.response_tokens) + sum(self.response_tokens)

    def requests(self) -> list[Request]:
        """Return the requests for an engine; the id of each is (number, sample)."""
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
        return Drawn(
            number,
            min(prompt.input_tokens, self._longest_prompt),
            tuple(min(one.output_tokens, self.longest_response) for one in prompt.responses),
        )


def number_of(request: Hashable) -> int:
    """Return the number of the prompt that a response answers, from the id of its request."""
    assert isinstance(request, tuple)
    number: int = request[0]
    return number
