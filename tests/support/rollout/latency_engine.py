"""An engine that keeps a latency model to the letter, on a clock of its own: what a profile has to find out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols import EngineStats
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import EngineRequest, StepOutput

PASS_TOKENS = 4096


@dataclass
class Clock:
    """Seconds that pass only when an engine works."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class LatencyEngine:
    """`base.SleepableEngine`. `look`: what each look at its figures takes, between two steps. `off`: how far a step
    is off the latency model."""

    def __init__(
        self,
        latency: LatencyModel,
        clock: Clock,
        kv_tokens: int,
        look: float = 0.0,
        off: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.latency, self.clock, self.kv_tokens, self.look, self.off = latency, clock, kv_tokens, look, off
        self.weight_version: int | None = None
        self.waiting: list[EngineRequest] = []
        self.running: dict[str, tuple[EngineRequest, int]] = {}
        self.steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def check(self, request: EngineRequest) -> None: ...

    def add(self, request: EngineRequest) -> None:
        self.waiting.append(request)

    def step(self) -> list[StepOutput]:
        self.steps += 1
        if self.waiting:
            return self._prefill()
        context = sum(len(request.token_ids) + made for request, made in self.running.values())
        self._work(self.latency.step(len(self.running), context))
        return [self._token(id) for id in list(self.running)]

    def _prefill(self) -> list[StepOutput]:
        admitted: list[EngineRequest] = []
        while self.waiting and sum(len(one.token_ids) for one in [*admitted, self.waiting[0]]) <= PASS_TOKENS:
            admitted.append(self.waiting.pop(0))
        lengths = [len(one.token_ids) for one in admitted]
        self._work(self.latency.prefill(sum(lengths), sum(length**2 for length in lengths)))
        self.running |= {one.id: (one, 0) for one in admitted}
        return [self._token(one.id) for one in admitted]

    def _work(self, seconds: float) -> None:
        self.clock.now += seconds * self.off()

    def _token(self, id: str) -> StepOutput:
        request, made = self.running[id]
        self.running[id] = request, made + 1
        done = made + 1 >= request.max_new_tokens
        if done:
            del self.running[id]
        return StepOutput(id, (7,), (0.0,), FinishReason.LENGTH if done else None)

    def abort(self, ids: list[str]) -> None:
        for id in ids:
            self.running.pop(id, None)
        self.waiting = [one for one in self.waiting if one.id not in ids]

    def load(self, version: int) -> None:
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None

    def wake(self) -> None: ...

    def stats(self) -> EngineStats:
        self.clock.now += self.look
        return EngineStats(len(self.running), len(self.waiting), 0.0, 0, 0, 0, 0, 0, kv_tokens=self.kv_tokens)

    def close(self) -> None: ...
