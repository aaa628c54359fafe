"""Simulated replica: generates on the performance model.

It implements the exact protocol: terms, leases, cursors, refusals, KV files. Its engine counts exact tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.perf_model.sampling_plan import Point
from rljob_runtime.protocols import (
    EngineProfile,
    EngineStats,
    GenerateRequest,
    KeptEngines,
    KvExport,
    KvRefusal,
    KvStats,
    LoadTiming,
    ProfileLimits,
    Refused,
    ReplicaReport,
    TermFence,
    WrongVersion,
)
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.idle_profile import STEPS, loads_of
from rljob_runtime.simulator.core.events import (
    KvAsked,
    LaidOut,
    Loaded,
    MadeRoom,
    Profiled,
)
from rljob_runtime.simulator.core.process_clock import SOON, Event, loop_time
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind, Lengths
from rljob_runtime.simulator.peers.engines.kv_memory import KvMemory, full_blocks
from rljob_runtime.simulator.peers.engines.replica_engine import ReplicaEngine
from rljob_runtime.simulator.peers.host import Host


@dataclass(frozen=True)
class Engines:
    """Engines of a replica: the first one, the lengths of its responses, and those of other TP sizes.

    With `layouts` (engines by TP size) a replica sleeps until it gets one of them, which takes `layout_seconds`, and
    `build_seconds` more for its first time in this size.
    """

    kind: EngineKind
    lengths: Lengths | None = None
    layouts: Mapping[int, EngineKind] = field(default_factory=dict)
    layout_seconds: float = 0.0
    build_seconds: float = 0.0


class SimulatedReplica:
    """`protocols.Replica`.

    A new object is a new process: it holds nothing. `loaded`: the version that it begins with. It gets a layout only
    while its host has room.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        engines: Engines,
        loaded: int | None = None,
        boot: str = "0",
        kv: KvMemory | None = None,
    ) -> None:
        self.name = name
        self._attempts: dict[TrajectoryKey, int] = {}
        """Highest attempts seen or aborted, under these weights."""
        self._engine = ReplicaEngine(name, engines.kind, engines.lengths, host.pace, host.observe)
        self.held = self._engine.held
        self._layouts = engines.layouts or {1: engines.kind}
        self._layout_seconds, self._build_seconds = engines.layout_seconds, engines.build_seconds
        self._built: set[int] = set()
        """Sizes of which it has an engine."""
        self._free = host.room
        self._layout: int | None = None if engines.layouts else 1
        self._switches = 0
        self._weights = host.weights
        self._loaded = loaded
        self._boot = boot
        self._pace = host.pace
        self._observe = host.observe
        self._fence = TermFence(name)
        self._busy = asyncio.Lock()
        self._asked = Event()
        self._commanded = Event()
        self._profiles = 0
        self._profile_seconds = 0.0
        self._loads = 0
        self._kv = kv or KvMemory()
        self._moved = KvStats()
        # The files of a dead writer are swept.
        self._kv.drop(name)

    # --- the protocol ---

    @property
    def rests(self) -> bool:
        """Whether it holds no accelerator memory."""
        return self._layout is None

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        self._begin_command(term)
        async with self._busy:
            if self._layout != tensor_parallel:
                if not self.rests:
                    self._observe(MadeRoom(self.name))
                self._rest()
        self._asked.fire()
        return self._kept()

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        self._begin_command(term)
        async with self._busy:
            if self._layout == tensor_parallel:
                return self._kept()
            self._rest()
            kind = self._layouts.get(tensor_parallel)
            if kind is None:
                self._built.discard(tensor_parallel)
                sizes = " and ".join(map(str, sorted(self._layouts)))
                raise Refused(f"{self.name}: no engine of tensor parallel size {tensor_parallel}, only of {sizes}")
            if not self._free():
                raise Refused(f"{self.name}: the accelerators' memory is in use")
            since = loop_time()
            builds = tensor_parallel not in self._built
            await self._pace.sleep(self._layout_seconds + self._build_seconds * builds)
            self._engine.change(kind)
            self._built.add(tensor_parallel)
            self._layout = tensor_parallel
            self._switches += 1
            self._observe(LaidOut(self.name, tensor_parallel, since))
        return self._kept()

    def _kept(self) -> KeptEngines:
        return KeptEngines(frozenset(self._built), len(self._built))

    def _rest(self) -> None:
        self._engine.advance()
        for key in list(self.held):
            self._engine.drop(key)
        self._layout = self._loaded = None

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        self._begin_command(term)
        async with self._busy:
            self._refuse_misfits(requests)
            fresh = [one for one in requests if self._attempts.get(one.key, 0) < one.attempt]
            ready = await self._import(fresh)
            self._attempts |= {request.key: request.attempt for request in fresh}
            self._engine.submit(fresh, ready)
        self._asked.fire()

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        self._begin_command(term)
        async with self._busy:
            receipt = self._export(attempts)
            await self._pace.sleep(receipt.seconds)
            self._stop(attempts)
        self._asked.fire()
        return receipt

    async def drop_kv(self, term: int) -> None:
        self._check(term)
        self._kv.drop(self.name)

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        self._begin_command(term)
        async with self._busy:
            self._stop(attempts)
        self._asked.fire()

    def _stop(self, attempts: Mapping[TrajectoryKey, int]) -> None:
        self._engine.advance()
        for key, attempt in attempts.items():
            if self._attempts.get(key, 0) <= attempt:
                self._attempts[key] = attempt
                self._engine.drop(key)

    def _check(self, term: int) -> None:
        """Adopt a term. A new coordinator knows no KV file of an earlier one."""
        is_new = term > self._fence.term
        self._fence.check(term)
        if is_new:
            self._kv.drop(self.name)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        self._check(term)
        self._engine.acknowledge(after)
        deadline = self._pace.now() + wait_seconds * self._pace.timers
        while True:
            due = self._engine.advance()
            if self._engine.outbox or deadline - self._pace.now() <= SOON:
                break
            await self._pace.until(min(deadline, due), self._asked)
        outbox = self._engine.outbox
        cursor = outbox[-1][0] if outbox else after
        return ReplicaReport(self._boot, cursor, tuple(delta for _, delta in outbox), self._loaded, self._stats())

    async def load(self, term: int, version: int) -> int:
        self._begin_command(term)
        async with self._busy:
            if version == self._loaded:
                return version
            if self.held:
                raise Refused(f"{self.name} still holds {len(self.held)} requests")
            whole = self._weights.whole
            if whole is None or whole < version:
                raise WrongVersion(f"the relay holds version {whole}, not {version}")
            since, content = loop_time(), self._weights.content
            await self._pace.sleep(self._engine.kind.load_seconds)
            self._loaded = whole
            self._attempts.clear()
            self._kv.drop_older(whole)
            self._loads += 1
            self._observe(Loaded(self.name, whole, content, since))
            return whole

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        self._begin_command(term)
        if self._loaded is None or self._layout is None or self.held:
            raise Refused(f"{self.name} has no weights, or holds requests")
        self._engine.advance()
        since, began, timings = loop_time(), self._pace.now(), list[LoadTiming]()
        for load in loads_of(limits, self._stats()):
            timing = _timed(self._engine.kind, load)
            due = self._pace.now() + timing.prefill_seconds + timing.steps * timing.step_seconds
            end = min(due, began + limits.seconds)
            await self._pace.until(end, self._commanded)
            if end < due or end - self._pace.now() > SOON:
                break
            timings.append(timing)
        moved = await self._probed(timings, began + limits.seconds)
        self._profiles += 1
        self._profile_seconds += self._pace.now() - began
        self._observe(Profiled(self.name, self._layout or 0, len(timings), since))
        return EngineProfile(tuple(timings), self._stats(), moved)

    async def _probed(self, timings: Sequence[LoadTiming], end: float) -> KvStats:
        """Move the KV of the largest load to a file and back; nothing if it would not be done at `end`."""
        size, layout = self._engine.kind.kv, self._layout
        tokens = full_blocks(max((one.batch * one.prompt_tokens for one in timings), default=0))
        if size is None or layout is None or not tokens or self._weights.full:
            return KvStats()
        nbytes = tokens * size.accelerator_bytes(layout)
        seconds = nbytes * self._engine.kind.kv_byte_seconds
        due = self._pace.now() + 2 * seconds
        await self._pace.until(min(due, end), self._commanded)
        if due - self._pace.now() > SOON:
            return KvStats()
        return KvStats(tokens, tokens * size.token_bytes, seconds, tokens, nbytes, seconds)

    def _begin_command(self, term: int) -> None:
        """Check the term, and end a profile."""
        self._check(term)
        self._commanded.fire()

    # --- KV ---

    def _export(self, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        """Write the KV of these responses. The copy takes the seconds of the receipt."""
        size, version, layout = self._engine.kind.kv, self._loaded, self._layout
        self._kv.drop(self.name)
        if size is None or version is None or layout is None:
            return KvExport(None, {}, 0, 0.0, KvRefusal.UNSUPPORTED, "the engine transfers no KV")
        made = self._engine.progress()
        held = {
            key: full_blocks(max(1, len(self.held[key].request.prompt_token_ids)) + made[key] - 1)
            for key, attempt in attempts.items()
            if key in self.held
            and self.held[key].request.attempt <= attempt
            # A request that waits has made nothing here, and has no KV.
            and made.get(key, 0) > len(self.held[key].request.prefix_token_ids)
        }
        tokens = {key: count for key, count in held.items() if count}
        if not tokens:
            return KvExport(None, {}, 0, 0.0, KvRefusal.NO_BLOCK, "no response has a full block")
        file = None if self._weights.full else self._kv.write(self.name, version, tokens, size)
        if file is None:
            return KvExport(None, {}, 0, 0.0, KvRefusal.NO_ROOM, "the shared memory has no room")
        moved = sum(tokens.values())
        seconds = moved * size.accelerator_bytes(layout) * self._engine.kind.kv_byte_seconds
        nbytes = moved * size.token_bytes
        self._moved += KvStats(exported_tokens=moved, exported_bytes=nbytes, export_seconds=seconds)
        return KvExport(file, tokens, nbytes, seconds)

    async def _import(self, requests: Sequence[GenerateRequest]) -> dict[TrajectoryKey, int]:
        """Copy the KV that these requests name; return the tokens of each."""
        size, layout, ready = self._engine.kind.kv, self._layout, {}
        for request in requests:
            if request.kv_file is None:
                continue
            context = max(1, len(request.prompt_token_ids)) + len(request.prefix_token_ids)
            tokens, cause = self._kv.usable(request) if size is not None else (0, "shape")
            written = self._kv.version_of(request.kv_file)
            self._observe(KvAsked(self.name, request.key, written, request.weight_version, tokens, cause))
            # The last token is always computed.
            tokens = min(tokens, full_blocks(context - 1))
            self._moved += KvStats(recomputed_tokens=context - tokens, **({cause: 1} if cause else {}))
            ready[request.key] = tokens
        if size is not None and layout is not None and (moved := sum(ready.values())):
            nbytes = moved * size.accelerator_bytes(layout)
            seconds = nbytes * self._engine.kind.kv_byte_seconds
            self._moved += KvStats(imported_tokens=moved, imported_bytes=nbytes, import_seconds=seconds)
            await self._pace.sleep(seconds)
        return ready

    def _refuse_misfits(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            if request.weight_version != self._loaded:
                raise WrongVersion(f"{self.name} holds version {self._loaded}, not {request.weight_version}")
            most = len(request.prompt_token_ids) + request.sampling.max_tokens
            if most > self._engine.kind.kv_tokens:
                raise Refused(f"{request.key} may take {most} tokens; the KV cache has {self._engine.kind.kv_tokens}")

    def _stats(self) -> EngineStats:
        engine, kind, load = self._engine, self._engine.kind, self._engine.load()
        return EngineStats(
            load.running,
            load.waiting,
            min(1.0, load.kv_use),
            load.preemptions,
            load.generated_tokens,
            engine.prompt_tokens,
            self._loads,
            self._loads,
            engine.aborted,
            layout_switches_total=self._switches,
            kv_tokens=kind.kv_tokens,
            max_running=kind.max_sequences,
            kv=self._moved,
            kv_size=None if self.rests else kind.kv,
            profiles_total=self._profiles,
            profile_seconds_total=self._profile_seconds,
            passed_total=load.passed,
            decode=load.decode,
            prefill=load.prefill,
            square_tokens=kind.latency.square_tokens,
        )


def _timed(kind: EngineKind, load: Point) -> LoadTiming:
    """Return what the engine needs for a load."""
    tokens = load.batch * load.context
    context = tokens + load.batch * (1 + STEPS / 2)
    prefill = kind.latency.prefill(tokens, load.batch * load.context**2)
    return LoadTiming(load.batch, load.context, prefill, STEPS, kind.latency.step(load.batch, context), context)
