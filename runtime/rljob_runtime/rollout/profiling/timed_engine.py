"""An engine whose steps are timed where the replica's thread takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rljob_runtime.rollout.engines.base import SleepableEngine, StepOutput


@dataclass(frozen=True)
class Step:
    """`began` and `ended`: by the watch's clock. `sequences`: how many got a token."""

    began: float
    ended: float
    sequences: int


@dataclass(frozen=True)
class Timing:
    """Of steps of one kind: `seconds` up to the begin of the next one, `replica_seconds` of them between the two."""

    batch: int
    context: int
    seconds: float
    replica_seconds: float


class TimedEngine:
    """`base.SleepableEngine` that writes down its steps in `steps`, by `clock`. One thread writes; whoever reads them
    while the engine is not busy reads all."""

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
    """Of the first pass over prompts of `context` tokens, in a run that began on an idle engine."""
    first = next((place for place, step in enumerate(steps) if step.sequences), None)
    if first is None:
        return None
    end = steps[first + 1].began if first + 1 < len(steps) else steps[first].ended
    return Timing(steps[first].sequences, context, end - steps[0].began, end - steps[first].ended)


def decode_timing(steps: list[Step], batch: int, context: int, wanted: int) -> Timing | None:
    """Median of the first `wanted` steps in which all `batch` sequences decode; None where there are fewer. `context`:
    tokens of each prompt. A step after which nothing follows has no whole cost and does not count."""
    places = decoding(steps, batch)[:wanted]
    if len(places) < wanted or places[-1] + 1 >= len(steps):
        return None
    made = sum(step.sequences for step in steps[: places[0]]) / batch
    return Timing(
        batch,
        round(context + made + (wanted - 1) / 2),
        median(steps[place + 1].began - steps[place].began for place in places),
        median(steps[place + 1].began - steps[place].ended for place in places),
    )


def decoding(steps: list[Step], batch: int) -> list[int]:
    """The steps in which all sequences decode: in the first step that gives each a token some may be in prefill."""
    return [place for place, step in enumerate(steps) if step.sequences == batch][1:]
