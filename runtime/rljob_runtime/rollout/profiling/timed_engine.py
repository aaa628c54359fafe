"""Timed engine: records the time of each step in the replica's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rljob_runtime.rollout.engines.base import SleepableEngine, StepOutput


@dataclass(frozen=True)
class Step:
    """Times of one step by the clock. `sequences`: number that got a token."""

    began: float
    ended: float
    sequences: int


@dataclass(frozen=True)
class Timing:
    """Time of steps of one kind.

    `seconds` reach from the start of a step to the start of the next. `replica_seconds` are the part between two steps.
    """

    batch: int
    context: int
    seconds: float
    replica_seconds: float


class TimedEngine:
    """`base.SleepableEngine` that appends its steps to `steps`, timed by `clock`.

    One thread writes. A reader sees all steps while the engine is not busy.
    """

    def __init__(self, engine: SleepableEngine, clock: Callable[[], float], steps: list[Step]) -> None:
        self._engine = engine
        self._clock = clock
        self._steps = steps

    def step(self) -> list[StepOutput]:
        began = self._clock()
        outputs = self._engine.step()
        self._steps.append(Step(began, self._clock(), len(outputs)))
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def prefill_timing(steps: list[Step], context: int) -> Timing | None:
    """Return the timing of the first pass over prompts of `context` tokens, in a run that began on an idle engine."""
    first = next((place for place, step in enumerate(steps) if step.sequences), None)
    if first is None:
        return None
    end = steps[first + 1].began if first + 1 < len(steps) else steps[first].ended
    return Timing(steps[first].sequences, context, end - steps[0].began, end - steps[first].ended)


def decode_timing(steps: list[Step], batch: int, context: int, count: int) -> Timing | None:
    """Return the median of the first `count` steps in which all `batch` sequences decode; None if there are fewer.

    `context`: tokens of each prompt. A last step does not count: its cost is known only when the next step begins.
    """
    places = decoding(steps, batch)[:count]
    if len(places) < count or places[-1] + 1 >= len(steps):
        return None
    made = sum(step.sequences for step in steps[: places[0]]) / batch
    return Timing(
        batch,
        round(context + made + (count - 1) / 2),
        median(steps[place + 1].began - steps[place].began for place in places),
        median(steps[place + 1].began - steps[place].ended for place in places),
    )


def decoding(steps: list[Step], batch: int) -> list[int]:
    """Return the steps in which all sequences decode.

    The first step that gives each sequence a token is left out, because some sequences may be in prefill.
    """
    return [place for place, step in enumerate(steps) if step.sequences == batch][1:]
