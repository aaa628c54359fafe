"""The engine, naively: one step at a time, a list of running and a list of waiting sequences, every sum done again.

It shares with the event model the price of a step and nothing else; where the two agree, jumping lost nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.latency_model import LatencyModel

Operation = tuple[float, str, Any]
"""(time, "submit", request) or (time, "abort", id)."""


@dataclass(eq=False)
class Sequence:
    request: Request
    generated: int
    cached: int

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.generated


def priority(sequence: Sequence) -> int:
    return sequence.request.priority


@dataclass
class StepwiseEngine:
    """`operations`: by time."""

    latency: LatencyModel
    kv_tokens: int
    max_sequences: int
    watermark: float
    operations: list[Operation]
    prefill_budget: int | None = None
    running: list[Sequence] = field(default_factory=list)
    waiting: list[Sequence] = field(default_factory=list)
    finishes: dict[Hashable, float] = field(default_factory=dict)
    aborted: dict[Hashable, int] = field(default_factory=dict)
    preemptions: int = 0
    generated: int = 0
    prefilled: int = 0
    time: float = 0.0
    busy: float = 0.0
    stepped: bool = True
    """Whether a decode step came after the last prefill pass."""

    def run(self) -> StepwiseEngine:
        """To the end of all operations and all work."""
        while True:
            self.take_operations()
            if not self.running and not self.waiting:
                if not self.operations:
                    return self
                self.time = max(self.time, self.operations[0][0])
                self.take_operations(inclusive=True)
                continue
            if self.preempt() or self.owes_step() or not self.admit():
                self.decode()

    def take_operations(self, inclusive: bool = False) -> None:
        """What was asked before the boundary; at it only where the engine was idle."""
        while self.operations and (
            self.operations[0][0] < self.time or (inclusive and self.operations[0][0] <= self.time)
        ):
            _, kind, what = self.operations.pop(0)
            if kind == "submit":
                self.waiting.append(Sequence(what, what.generated_tokens, what.cached_tokens))
                self.waiting.sort(key=priority)
                continue
            for queue in (self.running, self.waiting):
                for sequence in [one for one in queue if one.request.id == what]:
                    queue.remove(sequence)
                    self.aborted[what] = sequence.generated

    def take(self, seconds: float) -> None:
        self.time += seconds
        self.busy += seconds

    def total(self) -> int:
        return sum(sequence.context for sequence in self.running)

    def preempt(self) -> bool:
        some = False
        while self.total() + len(self.running) > self.kv_tokens:
            youngest = max(reversed(self.running), key=priority)
            self.running.remove(youngest)
            youngest.cached = 0
            self.waiting.insert(0, youngest)
            self.waiting.sort(key=priority)
            self.preemptions += 1
            some = True
        return some

    def owes_step(self) -> bool:
        return self.prefill_budget is not None and bool(self.running) and bool(self.waiting) and not self.stepped

    def admit(self) -> bool:
        """A prefill pass; False if nothing could be admitted."""
        admitted: list[Sequence] = []
        while self.waiting and len(self.running) < self.max_sequences:
            needed = self.total() + self.waiting[0].context + len(self.running) + 1
            if self.running and needed > (1 - self.watermark) * self.kv_tokens:
                break
            computed = sum(one.context - one.cached for one in [*admitted, self.waiting[0]])
            if admitted and self.prefill_budget is not None and computed > self.prefill_budget:
                break
            admitted.append(self.waiting.pop(0))
            self.running.append(admitted[-1])
        tokens = sum(one.context - one.cached for one in admitted)
        if tokens:
            self.take(self.latency.prefill(tokens, sum(one.context**2 - one.cached**2 for one in admitted)))
            self.prefilled += tokens
        self.stepped = self.stepped and not admitted
        return bool(admitted)

    def decode(self) -> None:
        self.take(self.latency.step(len(self.running), self.total()))
        self.stepped = True
        for sequence in self.running:
            sequence.generated += 1
            self.generated += 1
        for sequence in self.running:
            if sequence.generated == sequence.request.response_tokens:
                if self.dropped(sequence):
                    self.aborted[sequence.request.id] = sequence.generated
                else:
                    self.finishes[sequence.request.id] = self.time
        self.running = [one for one in self.running if one.generated < one.request.response_tokens]

    def dropped(self, sequence: Sequence) -> bool:
        """It was aborted during the step that makes its last token: who asked has it back, so it does not finish."""
        return any(
            kind == "abort" and what == sequence.request.id and time < self.time for time, kind, what in self.operations
        )
