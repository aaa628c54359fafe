"""An engine that several replicas have one after the other, because its start takes longest."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, cast

import torch

from rljob_runtime.protocols import EngineStats
from rljob_runtime.rollout.engines.base import EngineRequest, SleepableEngine


class SharedEngine:
    """The engine of one replica while it has it: its totals begin at 0, and `close` only drops its requests."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._before = engine, asdict(engine.stats())
        self._added: list[str] = []

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._added.append(request.id)
        self._engine.add(request)

    def stats(self) -> EngineStats:
        """Return gauges, and totals since this replica has the engine."""
        now: EngineStats = self._engine.stats()
        return replace(
            now, **{name: getattr(now, name) - was for name, was in self._before.items() if name.endswith("_total")}
        )

    def close(self) -> None:
        """Give it back."""
        self._engine.abort(self._added)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def shared(engine: object) -> SleepableEngine:
    """Return an engine as the next replica has it. Call it in that replica's own thread."""
    # OpenMP's number of threads is the calling thread's, and vLLM's kernels insist on the one that they began with
    # (`vllm_compat`). It puts a stand-in that does nothing in the place of `torch.set_num_threads`.
    torch._C.set_num_threads(1)
    return cast(SleepableEngine, SharedEngine(engine))
