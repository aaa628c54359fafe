"""Engine cache: keeps the engines of one engine slot, one for each layout; one is in use, the others sleep.

Engines are expensive to build and cheap to keep, so a job that changes between its tensor parallel sizes builds each
once (PAT §4.4). A layout always starts without weights, because the weights of a sleeping engine may be old. An engine
that finds too little memory takes that of sleeping ones, down to the last one in use: a failed switch returns to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, cast

from rljob_runtime.protocols import EngineStats, KeptEngines, KvStats
from rljob_runtime.rollout.engines.base import EngineRequest, KvEngine, SleepableEngine, StepOutput

log = logging.getLogger(__name__)

NOTHING = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
GAUGES = frozenset({"running", "waiting", "kv_use", "kv_tokens", "max_running", "kv_size", "square_tokens"})
MEASURED = frozenset({"decode", "prefill"})
"""Totals of the slot, which the replica measures."""
TOTALS = tuple(field.name for field in fields(EngineStats) if field.name not in GAUGES | MEASURED | {"kv"})


class NoLayout(RuntimeError):
    """No engine is in use: the slot's accelerators serve another engine slot."""


class EngineCache:
    """`base.Engine` in front of the engine in use.

    `make(tensor_parallel)` builds an engine. `close_maker` releases what `make` needs.
    """

    def __init__(self, make: Callable[[int], SleepableEngine], close_maker: Callable[[], None] = lambda: None) -> None:
        self._make = make
        self._close_maker = close_maker
        self._kept: dict[int, SleepableEngine] = {}
        """Engines by size, least recently used first."""
        self._past = NOTHING
        """Totals of the discarded engines."""
        self._built = self._switches = 0
        self.tensor_parallel: int | None = None
        """Size of the layout in use; None while every engine sleeps."""

    # --- layouts ---

    def sleep(self) -> None:
        """Put the engine in use to sleep; it must not be busy."""
        if self.tensor_parallel is not None:
            engine = self._engine()
            self.tensor_parallel = None
            engine.sleep()

    def switch(self, tensor_parallel: int) -> None:
        """Use the engine of this layout, and build it if it is not kept.

        Raises the error of a failed build; then no engine is in use.
        """
        if tensor_parallel == self.tensor_parallel:
            return
        self.sleep()
        engine = self._woken(tensor_parallel) or self._build(tensor_parallel)
        self._kept[tensor_parallel] = engine
        self.tensor_parallel = tensor_parallel
        self._switches += 1

    def kept(self) -> KeptEngines:
        """Return the sizes of the slot's engines, and how many were ever built."""
        return KeptEngines(frozenset(self._kept), self._built)

    def _woken(self, tensor_parallel: int) -> SleepableEngine | None:
        engine = self._kept.pop(tensor_parallel, None)
        if engine is None:
            return None
        try:
            engine.wake()
        except Exception:
            log.exception("the engine of tensor parallel size %d does not wake; a new one is built", tensor_parallel)
            self._discard(engine)
            return None
        return engine

    def _build(self, tensor_parallel: int) -> SleepableEngine:
        """Build an engine. While memory is short, the least recently used engine is discarded, except the last one."""
        while True:
            try:
                engine = self._make(tensor_parallel)
            except Exception as error:
                if len(self._kept) < 2 or not is_short_of_memory(error):
                    raise
                size = next(iter(self._kept))
                log.warning(
                    "the engine of size %d is discarded to make room for size %d: %s", size, tensor_parallel, error
                )
                self._discard(self._kept.pop(size))
            else:
                self._built += 1
                return engine

    def _discard(self, engine: SleepableEngine) -> None:
        gone = engine.stats()
        self._past = replace(self._past, **_totals(self._past, gone))
        engine.close()

    def _engine(self) -> SleepableEngine:
        if self.tensor_parallel is None:
            raise NoLayout("no engine is in use; switch to a layout first")
        return self._kept[self.tensor_parallel]

    def kv_engine(self) -> KvEngine:
        """Return the engine in use. Raises `NoLayout`."""
        return cast(KvEngine, self._engine())

    # --- Engine ---

    @property
    def weight_version(self) -> int | None:
        return None if self.tensor_parallel is None else self._engine().weight_version

    @property
    def busy(self) -> bool:
        return self.tensor_parallel is not None and self._engine().busy

    def check(self, request: EngineRequest) -> None:
        self._engine().check(request)

    def add(self, request: EngineRequest) -> None:
        self._engine().add(request)

    def step(self) -> list[StepOutput]:
        return self._engine().step()

    def abort(self, ids: list[str]) -> None:
        if self.tensor_parallel is not None:
            self._engine().abort(ids)

    def load(self, version: int) -> None:
        self._engine().load(version)

    def stats(self) -> EngineStats:
        """Return gauges of the engine in use, and totals over all engines of the slot."""
        now = NOTHING if self.tensor_parallel is None else self._engine().stats()
        totals = _totals(self._past, *(engine.stats() for engine in self._kept.values()))
        return replace(now, **totals | {"layouts_built_total": self._built, "layout_switches_total": self._switches})

    def close(self) -> None:
        self.tensor_parallel = None
        try:
            while self._kept:
                self._kept.popitem()[1].close()
        finally:
            self._close_maker()


def is_short_of_memory(error: Exception) -> bool:
    """Return whether an engine was not built because memory was short: engines and ranks say so in words only."""
    return isinstance(error, MemoryError) or "memory" in str(error).lower()


def _totals(*stats: EngineStats) -> dict[str, Any]:
    counts = {name: sum(getattr(one, name) for one in stats) for name in TOTALS}
    return counts | {"kv": sum((one.kv for one in stats), KvStats())}
