"""Observed engines: what a stage knows of its engines at one moment, and the models that are fitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.observed_speed import Speed, fit_latency, square_tokens
from rljob_runtime.perf_model.outside_time import INSIDE, OutsideTime
from rljob_runtime.protocols import KvSize
from rljob_runtime.scheduling.adaptive_tp.guard import SurpriseGuard
from rljob_runtime.scheduling.adaptive_tp.snapshot import MAX_RUNNING, SizedEngine
from rljob_runtime.scheduling.lending.gain import EngineSpeed

UNBOUNDED = 1 << 40
"""Tokens of a KV cache of unknown size."""


@dataclass(frozen=True)
class ObservedEngines:
    """The engines of a stage at one moment.

    `kv_tokens`, `waiting` (requests in the engine) and `sizes` (tensor parallel) are by replica. `speeds`: by size, in
    earlier rounds and, last, in this one. `size`: that of most machines. `kv`: size of the KV that engines can move.
    `outside`: time that responses spend outside of their engines."""

    kv_tokens: Mapping[str, int]
    waiting: Mapping[str, int]
    sizes: Mapping[str, int]
    speeds: Mapping[int, Sequence[Speed]]
    size: int
    kv: KvSize | None = None
    outside: OutsideTime = INSIDE

    @property
    def speed(self) -> EngineSpeed | None:
        """The speed of an engine in the layout of most machines; None before one was observed."""
        return engine_speed(self.speeds.get(self.size, ()), self.outside)

    @property
    def other_speeds(self) -> dict[str, EngineSpeed | None]:
        """The speed of the engines of each machine in another layout, by machine; None before one was observed."""
        others = {machine_of(name): size for name, size in self.sizes.items() if size != self.size}
        known = {size: engine_speed(self.speeds.get(size, ()), self.outside) for size in set(others.values())}
        return {machine: known[size] for machine, size in others.items()}

    @property
    def sized(self) -> dict[int, SizedEngine]:
        """The engine of each size with a sample."""
        return sized_engines(self.speeds, self.kv, self.outside)


def engine_speed(speeds: Sequence[Speed], outside: OutsideTime = INSIDE) -> EngineSpeed | None:
    """Return the speed of engines that were observed so; None without a sample. `outside`: of their responses.

    A prefill that was not measured takes no less than decode steps."""
    latency, batches = fit_latency(speeds), [one.batch for speed in speeds for one in speed.stretches]
    if latency is None:
        return None
    most = max(1, int(max(batches)))
    if not latency.prefill_token_seconds:
        # As long as a decode step of the largest batch takes per token, which is longer: it is not free.
        token = latency.base(most) / most
        square = token * square_tokens(speeds)
        latency = replace(latency, prefill_token_seconds=token, prefill_square_seconds=square)
    return EngineSpeed(latency, max(1, min(most, ceil(min(batches)))), most, outside)


def _latency(speeds: Sequence[Speed]) -> LatencyModel | None:
    """Return the latency model of engines that were observed so; None without a sample."""
    speed = engine_speed(speeds)
    return None if speed is None else speed.latency


def _sized(size: int, latency: LatencyModel, seen: Sequence[Speed], kv: KvSize | None) -> SizedEngine:
    """Return an engine with the sizes that it had when it was seen last; an unknown one bounds nothing."""
    return SizedEngine(
        latency,
        kv_tokens=next((one.kv_tokens for one in reversed(seen) if one.kv_tokens), UNBOUNDED),
        kv_token_bytes=None if kv is None else kv.accelerator_bytes(size),
        kv_room_tokens=inf if kv is None else kv.room_tokens,
        max_running=next((one.max_running for one in reversed(seen) if one.max_running), MAX_RUNNING),
    )


def sized_engines(
    speeds: Mapping[int, Sequence[Speed]], kv: KvSize | None = None, outside: OutsideTime = INSIDE
) -> dict[int, SizedEngine]:
    """Return the engine of each size with a sample. `speeds`: of earlier rounds and, last, of this one.

    `kv`: size of the KV that the engines can move; None if they move none. `outside`: time that their responses spend
    outside of them.

    The latency model is that of all rounds, unless this round's steps take clearly longer than earlier ones predict."""
    guard, engines, earlier = SurpriseGuard(), {}, {}
    for size, seen in speeds.items():
        if (latency := _latency(seen)) is None:
            continue
        engines[size] = _sized(size, latency, seen, kv)
        if (before := _latency(seen[:-1])) is not None:
            earlier[size] = replace(engines[size], latency=before)
            for one in seen[-1].decode_without_loans:
                predicted = one.steps * before.step(round(one.batch), one.context)
                guard.stepped(size, one.steps, one.seconds, predicted)
    surprised = {size: engine for size, engine in earlier.items() if guard.slowdown(size) > 1}
    found = _without_transfers(engines | guard.corrected(surprised))
    return {size: _with_outside(engine, outside) for size, engine in found.items()}


def _without_transfers(engines: Mapping[int, SizedEngine]) -> dict[int, SizedEngine]:
    """Bound the squares of contexts by the tokens of the narrowest known size.

    The seconds of a token have its all-reduces, which attention does not need: the wider an engine, the more."""
    narrowest = min(engines, default=0)

    def bounded(size: int, latency: LatencyModel) -> LatencyModel:
        least = engines[narrowest].latency.prefill_token_seconds * narrowest / size
        return replace(
            latency, prefill_square_seconds=latency.square_tokens * min(latency.prefill_token_seconds, least)
        )

    return {size: replace(one, latency=bounded(size, one.latency)) for size, one in engines.items()}


def _with_outside(engine: SizedEngine, outside: OutsideTime) -> SizedEngine:
    # Responses outside need no room: what a cache still has of them is discarded first.
    return replace(
        engine,
        latency=outside.latency(engine.latency),
        max_running=outside.responses(engine.max_running),
        kv_tokens=int(engine.kv_tokens / outside.inside),
    )
