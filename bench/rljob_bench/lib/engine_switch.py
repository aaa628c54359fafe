"""Engine switch: what two engines of one accelerator take to change places in the middle of their responses.

They are those of two layouts: rank processes of one fork server, of which one is awake. The KV of unfinished responses
goes through shared memory, the weights come out of the relay's segment, and nothing is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings, KvTicket
from rljob_runtime.rollout.engines.multi_process import PEERS, MultiProcessEngine
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.rollout.kv.kv_file import KvFileWriter, Origin, plan

ORIGIN = ("rljob-bench", "machine")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Switch:
    """Seconds of the parts of one switch, in their order, and the KV that it moved."""

    export: float
    """From the accelerator to shared memory, with checksums."""
    sleep: float
    wake: float
    load: float
    take: float
    """Checksums, and from shared memory to the accelerator."""
    kv_bytes: int
    kv_tokens: int


@dataclass(frozen=True)
class Switches:
    """Switches between two engines that are kept. If none were kept, `build` would replace their wake-up.

    If no KV were moved, `prefill` would replace its export and import."""

    build: float
    """Seconds in which a warm process builds an engine, without its weights."""
    prefill: float
    """Seconds of the responses' prefill."""
    each: list[Switch]
    tokens: dict[str, list[int]]
    """What was generated, by request."""


def measure(
    settings: EngineSettings,
    version: int,
    requests: Sequence[EngineRequest],
    *,
    times: int,
    devices: Sequence[str] = (),
) -> Switches:
    """Generate `requests` on one engine, then switch `times` times between it and another.

    `settings.weights` must hold `version`, and no request may end before the last switch.
    """
    settings = replace(settings, transfers_kv=True)
    fork_server = ForkServer(PEERS["Reference"])
    engines: list[MultiProcessEngine] = []
    try:
        for _ in range(2):
            build, engine = _timed(lambda: MultiProcessEngine(fork_server, settings, devices))
            engines.append(engine)
            engine.sleep()
        source, target = engines
        source.wake()
        source.load(version)
        running = _RunningResponses(
            settings.weights.parent / "kv", version, {request.id: request for request in requests}
        )
        prefill = running.prefill(source)
        each = []
        for _ in range(times):
            each.append(running.switch(source, target))
            source, target = target, source
        return Switches(build, prefill, each, running.tokens)
    finally:
        for engine in engines:
            engine.close()
        fork_server.close()


@dataclass(frozen=True)
class Restart:
    """Seconds from nothing to an engine with weights, in new processes, and in processes that have imported it."""

    cold: float
    warm: float


def restart(settings: EngineSettings, version: int, kind: str) -> Restart:
    """Start an engine of this kind twice: in place of a switch between engines that are kept."""
    began = time.perf_counter()
    fork_server = ForkServer(PEERS[kind])
    try:
        cold = _start(fork_server, settings, version) - began
        began = time.perf_counter()
        return Restart(cold, _start(fork_server, settings, version) - began)
    finally:
        fork_server.close()


def _start(fork_server: ForkServer, settings: EngineSettings, version: int) -> float:
    """Start an engine and load its weights; return when it was ready."""
    engine = MultiProcessEngine(fork_server, settings)
    try:
        engine.load(version)
        return time.perf_counter()
    finally:
        engine.close()


class _RunningResponses:
    """The responses under way, wherever they are."""

    def __init__(self, folder: Path, version: int, requests: dict[str, EngineRequest]) -> None:
        self._folder = folder
        self._version = version
        self._requests = requests
        self.tokens: dict[str, list[int]] = {id: [] for id in requests}

    def prefill(self, engine: MultiProcessEngine) -> float:
        """Send all requests; return the seconds until each has a token."""
        began = time.perf_counter()
        for request in self._requests.values():
            engine.add(request)
        while not all(self.tokens.values()):
            self._step(engine)
        return time.perf_counter() - began

    def switch(self, source: MultiProcessEngine, target: MultiProcessEngine) -> Switch:
        """Move all responses; raise RuntimeError if any of their KV was computed again."""
        export, writer = _timed(lambda: self._write(source))
        try:
            entries = writer.index.responses
            source.abort(list(self._requests))
            sleep, _ = _timed(source.sleep)
            wake, _ = _timed(target.wake)
            load, _ = _timed(lambda: target.load(self._version))
            before = target.stats().kv
            tickets = [KvTicket(writer.path, id, entry.tokens) for id, entry in entries.items()]
            opened, usable = _timed(lambda: target.kv_open(tickets))
            if usable.count(True) != len(self._requests):
                raise RuntimeError(f"the KV of {usable.count(True)} of {len(self._requests)} responses can be used")
            for ticket in tickets:
                target.add(self._rest(ticket))
            moved = sum(ticket.tokens for ticket in tickets)
            # Requests enter over several steps.
            while (after := target.stats().kv).imported_tokens < before.imported_tokens + moved and target.busy:
                self._step(target)
            if after.imported_tokens != before.imported_tokens + moved:
                raise RuntimeError(f"{after.imported_tokens - before.imported_tokens} of {moved} tokens came as KV")
            take = opened + after.import_seconds - before.import_seconds
            return Switch(export, sleep, wake, load, take, writer.nbytes, moved)
        finally:
            writer.close()

    def _write(self, engine: MultiProcessEngine) -> KvFileWriter:
        shape, ids = engine.kv_shape(), list(self._requests)
        assert shape is not None
        index = plan(Origin(*ORIGIN, self._version), shape, engine.kv_held(ids))
        writer = KvFileWriter.create(self._folder, index)
        written = engine.kv_write(writer.path, writer.index, {id: id for id in index.responses})
        writer.seal({id: [heads[head] for head in range(shape.kv_heads)] for id, heads in written.items()})
        return writer

    def _rest(self, ticket: KvTicket) -> EngineRequest:
        request, made = self._requests[ticket.response], self.tokens[ticket.response]
        return replace(
            request,
            token_ids=(*request.token_ids, *made),
            max_new_tokens=request.max_new_tokens - len(made),
            generated=len(made),
            kv=ticket,
        )

    def _step(self, engine: MultiProcessEngine) -> None:
        for output in engine.step():
            self.tokens[output.id] += output.token_ids


def _timed(work: Callable[[], Value]) -> tuple[float, Value]:
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value
