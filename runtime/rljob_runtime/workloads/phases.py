"""Phases: a workload that changes during a job, as tasks change and responses grow."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from rljob_runtime.workloads.workload import Prompt, Workload


@dataclass(frozen=True)
class Phases:
    """A `Workload` that uses another one from each given step on.

    The first starts at 0. Raises `ValueError` unless steps rise from there."""

    parts: tuple[tuple[int, Workload], ...]

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.parts]
        if steps[:1] != [0] or sorted(set(steps)) != steps:
            raise ValueError(f"phases from steps {steps}; rising steps from 0 on would be right")

    @property
    def task(self) -> str:
        return "+".join(workload.task for _, workload in self.parts)

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        place = bisect_right(self.parts, step, key=lambda part: part[0]) - 1
        return self.parts[place][1].prompt(step, index, responses, attempt)
