"""Scaled: a shorter workload, for slower engines or smaller caches than those of the recording."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_runtime.workloads.workload import Prompt, Response, Turn, Workload


@dataclass(frozen=True)
class Scaled:
    """A `Workload` with another one's responses, each as one turn, scaled so that `longest` becomes `most` tokens.

    Ratios of lengths stay, up to rounding. Prompts are unchanged."""

    workload: Workload
    longest: int
    most: int

    @property
    def task(self) -> str:
        return self.workload.task

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        drawn = self.workload.prompt(step, index, responses, attempt)
        return replace(drawn, responses=tuple(self._scaled(one) for one in drawn.responses))

    def _scaled(self, response: Response) -> Response:
        tokens = round(response.output_tokens * self.most / self.longest)
        return Response((Turn(min(self.most, max(1, tokens))),), response.reward_seconds)
