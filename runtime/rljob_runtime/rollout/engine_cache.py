"""The engines of one seat, one for each layout it leads: at most two are kept, one of them is in use, the other sleeps.

Engines are expensive to build and cheap to keep, so a job that goes to and fro between two tensor parallel sizes builds
each once. A layout always begins without weights: those that an engine went to sleep with may be old by now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace

from rljob_runtime.protocols import EngineStats
from rljob_runtime.rollout.engines.base import EngineRequest, SleepableEngine, StepOutput

log = logging.getLogger(__name__)

KEPT = 2
"""Layouts kept at once."""

NOTHING = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
GAUGES = frozenset({"running", "waiting", "kv_use", "kv_tokens", "max_running"})
TOTALS = tuple(field.name for field in fields(EngineStats) if field.name not in GAUGES)


class NoLayout(RuntimeError):
    """The seat rests: its accelerators work for another one."""


class EngineCache:
    """`engine.Engine` in front of the layout in use; `make(tensor_parallel)` builds one, `close_maker` ends what it
    needs for that."""

    def __init__(self, make: Callable[[int], SleepableEngine], close_maker: Callable[[], None] = lambda: None) -> None:
        self._make = make
        self._close_maker = close_maker
        self._kept: dict[int, SleepableEngine] = {}
        """The one used last is the last."""
        self._past = NOTHING
        """Totals of the engines that are gone."""
        self._built = self._switches = 0
        self.tensor_parallel: int | None = None
        """The layout in use; None while the seat rests."""

    # --- layouts ---

    def sleep(self) -> None:
        """Put the engine in use to sleep; it must not be busy."""
        if self.tensor_parallel is not None:
            engine = self._engine()
            self.tensor_parallel = None
            engine.sleep()

    def switch(self, tensor_parallel: int) -> None:
        """Use the engine of this layout, built now unless it is kept. Raises what building it raises; the seat rests
        then."""
        if tensor_parallel == self.tensor_parallel:
            return
        self.sleep()
        engine = self._woken(tensor_parallel) or self._build(tensor_parallel)
        self._kept[tensor_parallel] = engine
        self.tensor_parallel = tensor_parallel
        self._switches += 1

    def _woken(self, tensor_parallel: int) -> SleepableEngine | None:
        engine = self._kept.pop(tensor_parallel, None)
        if engine is None:
            return None
        try:
            engine.wake()
        except Exception:
            log.exception("the engine of tensor parallel size %d does not wake; another one is built", tensor_parallel)
            self._discard(engine)
            return None
        return engine

    def _build(self, tensor_parallel: int) -> SleepableEngine:
        # First make room. The layout used last stays: it is the one to go back to.
        while len(self._kept) >= KEPT:
            self._discard(self._kept.pop(next(iter(self._kept))))
        engine = self._make(tensor_parallel)
        self._built += 1
        return engine

    def _discard(self, engine: SleepableEngine) -> None:
        gone = engine.stats()
        self._past = replace(self._past, **_totals(self._past, gone))
        engine.close()

    def _engine(self) -> SleepableEngine:
        if self.tensor_parallel is None:
            raise NoLayout("the seat rests; lay it out first")
        return self._kept[self.tensor_parallel]

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
        """Gauges of the engine in use; totals over all engines of the seat's life."""
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


def _totals(*stats: EngineStats) -> dict[str, int]:
    return {name: sum(getattr(one, name) for one in stats) for name in TOTALS}
