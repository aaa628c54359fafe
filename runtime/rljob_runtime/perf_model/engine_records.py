"""Engine records: what an engine simulator is given and what it returns."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals


@dataclass(frozen=True, slots=True)
class Request:
    """A response to generate or continue.

    A moved response brings its tokens, and its context is computed again, except for `cached_tokens` whose KV is
    present."""

    id: Hashable
    prompt_tokens: int
    response_tokens: int
    """Length at which it ends."""
    generated_tokens: int = 0
    cached_tokens: int = 0
    priority: int = 0
    """Requests of a lower value are admitted first, and preempted last."""

    @property
    def context_tokens(self) -> int:
        """Tokens required in the KV cache before the next one can be generated."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a response."""

    id: Hashable
    time: float


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Metrics of an engine, as a real one exports them. Counters never reset."""

    running: int
    waiting: int
    kv_tokens: int
    kv_use: float
    generated_tokens: int
    prefill_tokens: int
    recomputed_tokens: int
    """Part of `prefill_tokens` that had been computed before a preemption."""
    preemptions: int
    busy_seconds: float
    passed: int = 0
    """Requests that were queued before one that had arrived earlier, because of their priority."""
    decode: StepTotals = NO_STEPS
    prefill: StepTotals = NO_STEPS
    """Of passes that give no token."""
