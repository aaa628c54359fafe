"""Replica engine: the engine of a simulated replica, the requests that it holds, and its output.

It does no work between two events: `advance` brings it to the present."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from rljob_runtime.perf_model.engine_records import EngineLoad, Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.protocols import Delta, GenerateRequest
from rljob_runtime.protocols.trajectory import FinishReason, TrajectoryKey
from rljob_runtime.simulator.core.events import Aborted, Generated, Observe, Submitted
from rljob_runtime.simulator.core.process_clock import SOON, ProcessClock, loop_time
from rljob_runtime.simulator.core.tokens import phase, text
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind, Lengths, any_length

_Id = tuple[TrajectoryKey, int]
"""A request at the engine: a response and its attempt."""


@dataclass
class _Held:
    request: GenerateRequest
    length: int
    sent: int
    phase: int
    since: float


@dataclass(frozen=True)
class EngineTotals:
    """Totals of the engines that a replica has had."""

    preemptions: int = 0
    generated_tokens: int = 0
    passed: int = 0
    decode: StepTotals = NO_STEPS
    prefill: StepTotals = NO_STEPS

    def with_load(self, load: EngineLoad) -> EngineTotals:
        """Return the totals with those of one more engine."""
        return EngineTotals(
            self.preemptions + load.preemptions,
            self.generated_tokens + load.generated_tokens,
            self.passed + load.passed,
            self.decode + load.decode,
            self.prefill + load.prefill,
        )


class ReplicaEngine:
    """Engine of one replica, built at its first use and again after `change`."""

    def __init__(
        self, name: str, kind: EngineKind, lengths: Lengths | None, pace: ProcessClock, observe: Observe
    ) -> None:
        self.kind = kind
        self.held: dict[TrajectoryKey, _Held] = {}
        self.outbox: list[tuple[int, Delta]] = []
        """Numbered deltas that no poll has acknowledged."""
        self.prompt_tokens = 0
        self.aborted = 0
        self._name = name
        self._lengths = lengths
        self._pace = pace
        self._observe = observe
        self._engine: EngineSimulator | None = None
        self._time = 0.0
        self._next_stream = 0.0
        self._numbers = itertools.count(1)
        self._past = EngineTotals()

    def advance(self) -> float:
        """Advance to the present, and return when it next has output."""
        engine = self._advanced()
        return min(engine.next_event, self._next_stream if self.held else math.inf)

    def submit(self, requests: Sequence[GenerateRequest], ready: Mapping[TrajectoryKey, int]) -> None:
        """Start requests. `ready`: tokens whose KV the engine has."""
        engine, taken = self._advanced(), []
        for request in requests:
            self.drop(request.key)
            taken += self._take_on(request, ready.get(request.key, 0))
        engine.submit(self._time, taken)

    def acknowledge(self, number: int) -> None:
        """Forget the deltas up to this number."""
        self.outbox = [(one, delta) for one, delta in self.outbox if one > number]

    def progress(self) -> dict[TrajectoryKey, int]:
        """Return the tokens generated so far, for each request."""
        return {cast(_Id, one)[0]: made for one, made in self._advanced().progress(self._time).items()}

    def change(self, kind: EngineKind) -> None:
        """Replace the engine, which holds nothing."""
        self._past = self._past.with_load(self._load())
        self.kind, self._engine = kind, None

    def load(self) -> EngineLoad:
        """Return its load, with the totals of earlier engines."""
        load = self._load()
        return replace(load, **vars(self._past.with_load(load)))

    def _load(self) -> EngineLoad:
        assert self._engine is not None
        return self._engine.load(self._time)

    def _take_on(self, request: GenerateRequest, ready: int) -> list[Request]:
        """Give the engine a request. `ready`: tokens whose KV it has."""
        key, version, limit = request.key, request.weight_version, request.sampling.max_tokens
        length = min(limit, (self._lengths or any_length(limit))(key, version))
        prefix = len(request.prefix_token_ids)
        held = self.held[key] = _Held(request, length, prefix, phase(key, version), loop_time())
        self._observe(Submitted(self._name, key, request.attempt, version, prefix))
        self.prompt_tokens += len(request.prompt_token_ids)
        if prefix >= length:
            # A complete prefix ends immediately, with an empty last delta.
            self._end(held)
            return []
        if len(self.held) == 1:
            self._next_stream = self._time + self.kind.stream_seconds
        prompt = max(1, len(request.prompt_token_ids))
        return [Request((key, request.attempt), prompt, length, prefix, ready, request.priority)]

    def drop(self, key: TrajectoryKey) -> None:
        """Abort the attempt of this response that it holds, if any."""
        held = self.held.pop(key, None)
        if held is not None and self._engine is not None:
            attempt = held.request.attempt
            left = self._engine.abort(self._time, [(key, attempt)])
            made = left[0].generated_tokens if left else held.length
            self.aborted += 1
            if math.isfinite(self.kind.stream_seconds):
                # An engine hands out its tokens step by step, so an abort loses none.
                self._send(held, made)
            self._observe(Aborted(self._name, key, attempt, made, held.since))

    def _advanced(self) -> EngineSimulator:
        """Advance the engine to the present and move its output to the outbox."""
        now = max(self._time, self._pace.now())
        if self._engine is None:
            self._engine = self.kind.make(now)
        engine = self._engine
        if engine.next_event - now <= SOON:
            now = max(now, engine.next_event)
        self._time = now
        for finish in engine.advance(now):
            key, attempt = cast(_Id, finish.id)
            held = self.held.get(key)
            if held is not None and held.request.attempt == attempt:
                self._end(held)
        if self.held and self._next_stream - now <= SOON:
            self._next_stream = now + self.kind.stream_seconds
            for one, made in engine.progress(now).items():
                key, _ = cast(_Id, one)
                self._send(self.held[key], made)
        return engine

    def _end(self, held: _Held) -> None:
        request = held.request
        del self.held[request.key]
        reason = FinishReason.LENGTH if held.length == request.sampling.max_tokens else FinishReason.STOP
        self._send(held, max(held.length, held.sent), reason)
        self._observe(
            Generated(self._name, request.key, request.attempt, request.weight_version, held.length, held.since)
        )

    def _send(self, held: _Held, made: int, reason: FinishReason | None = None) -> None:
        start = min(held.sent, made)
        if start == made and reason is None:
            return
        tokens, logprobs = text(held.phase, start, made)
        held.sent = made
        request = held.request
        delta = Delta(request.key, request.attempt, start, tokens, logprobs, request.weight_version, reason)
        self.outbox.append((next(self._numbers), delta))
