"""Rollout replica: the coordinator's protocol in front of one engine slot.

It stamps every token with the version that made it, keeps deltas until they are acknowledged, and gives a repeated
command the same answer. Leases, terms and versions are checked here, so an engine knows none of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from rljob_runtime.protocols import (
    Delta,
    EngineProfile,
    GenerateRequest,
    KeptEngines,
    KvExport,
    KvRefusal,
    KvStats,
    PeerGone,
    ProfileLimits,
    Refused,
    ReplicaReport,
    TermFence,
    WrongVersion,
)
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.rollout.attempts import AttemptTracker, engine_id
from rljob_runtime.rollout.engine_cache import EngineCache, NoLayout
from rljob_runtime.rollout.engine_profile import EngineProfiler
from rljob_runtime.rollout.engine_thread import EngineDied, EngineThread
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, RequestRejected, SleepableEngine, StepOutput
from rljob_runtime.rollout.engines.weights import VersionUnavailable, WeightMismatch
from rljob_runtime.rollout.kv_exchange import KvExchange
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.step_meter import StepMeter
from rljob_runtime.rollout.stop_strings import ResponseText, StopStrings, no_text

Result = TypeVar("Result")
log = logging.getLogger(__name__)

LOADS = 8
"""Attempts of a load while the relay commits newer versions."""
CLOSE_SECONDS = 30.0
"""Limit of a clean end: the step in progress plus the engine's shutdown."""


class RolloutReplica:
    """`protocols.Replica` over the engines that `make_engine(tensor_parallel, devices)` builds in the engine's thread.

    No engine is in use until the first layout. `eos_token_ids` end a response unless its sampling ignores them.
    `close_maker` is called after the last engine has ended. `open_text` opens the text in which stop strings are
    sought. Without `kv`, no KV leaves an engine. All methods may be called from any event loop.
    """

    def __init__(
        self,
        name: str,
        make_engine: Callable[[int, Sequence[str]], SleepableEngine],
        eos_token_ids: frozenset[int],
        close_maker: Callable[[], None] = lambda: None,
        open_text: Callable[[], ResponseText] = no_text,
        kv: KvExchange | None = None,
    ) -> None:
        self.name = name
        self.boot = uuid.uuid4().hex
        self._eos = eos_token_ids
        self._fence = TermFence(f"replica {name}")
        self._attempts = AttemptTracker()
        self._stops = StopStrings(open_text)
        self._meter = StepMeter()
        self._outbox = Outbox(self.boot)
        self._kv = kv
        self._devices: tuple[str, ...] = ()
        self._cache = EngineCache(lambda size: make_engine(size, self._devices), close_maker)
        self._profiler = EngineProfiler(time.perf_counter, None if kv is None else self._probe_kv)
        self._engine = EngineThread(name, lambda: self._cache, self._changed, self._ended)

    async def ready(self) -> None:
        """Wait until the engine's thread serves. Raises `PeerGone` with the cause if it has ended."""
        await self._on_engine(lambda engine: None)

    async def adopt(self, devices: Sequence[str]) -> None:
        """Set the accelerators (values of CUDA_VISIBLE_DEVICES) of this engine slot and the slots after it."""
        self._devices = tuple(devices)

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        """See `protocols.Replica.release_accelerators`."""
        self._check_term(term)
        return await self._command(lambda engine: self._release_accelerators(engine, tensor_parallel))

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        """See `protocols.Replica.switch_layout`."""
        self._check_term(term)
        return await self._command(lambda engine: self._switch_layout(engine, tensor_parallel))

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """See `protocols.Replica.submit`.

        Submits all or none: one impossible request refuses the batch with its reason.
        """
        self._check_term(term)
        await self._command(lambda engine: self._start(engine, requests))

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """See `protocols.Replica.abort`."""
        self._check_term(term)
        await self._command(lambda engine: self._abort(engine, self._attempts.abort(attempts)))

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        """See `protocols.Replica.export_kv`."""
        self._check_term(term)
        return await self._command(lambda engine: self._export_kv(engine, attempts))

    async def drop_kv(self, term: int) -> None:
        """See `protocols.Replica.drop_kv`."""
        self._check_term(term)
        if self._kv is not None:
            drop = self._kv.drop
            await self._on_engine(lambda engine: drop())

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`."""
        self._check_term(term)
        if wait_seconds > 0 and not self._engine.ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(self._outbox.ready(after)), wait_seconds)
        if self._engine.ended:
            await self.ready()  # Raises PeerGone with the cause.
        return self._outbox.take(after)

    async def load(self, term: int, version: int) -> int:
        """See `protocols.Replica.load`. A loaded version is not loaded again."""
        self._check_term(term)
        return await self._command(lambda engine: self._load(engine, version))

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        """See `protocols.Replica.profile`."""
        self._check_term(term)
        running = await self._command(lambda engine: self._begin_profile(engine, limits))
        try:
            return await asyncio.wrap_future(running)
        except EngineDied as error:
            raise PeerGone(f"replica {self.name}: {error}") from error

    async def close(self) -> None:
        """End the engine after the step in progress; waiting callers receive `PeerGone`."""
        if not await asyncio.to_thread(self._engine.close, CLOSE_SECONDS):
            raise PeerGone(f"replica {self.name}: the engine did not end within {CLOSE_SECONDS:.0f} s")
        if self._kv is not None:
            self._kv.drop()

    def _check_term(self, term: int) -> None:
        """Adopt a term. A new coordinator knows no KV file of an earlier one and will not drop it."""
        is_new = term > self._fence.term
        self._fence.check(term)
        if is_new and self._kv is not None:
            drop = self._kv.drop
            self._engine.call(lambda engine: drop())

    async def _command(self, work: Callable[[Engine], Result]) -> Result:
        """Serve a command, for which a profile makes room."""

        def serve(engine: Engine) -> Result:
            self._profiler.end(engine)
            return work(engine)

        return await self._on_engine(serve)

    async def _on_engine(self, work: Callable[[Engine], Result]) -> Result:
        try:
            # Shielded: a caller that times out must not cancel a command that the engine may have started.
            return await asyncio.shield(asyncio.wrap_future(self._engine.call(work)))
        except EngineDied as error:
            raise PeerGone(f"replica {self.name}: {error}") from error

    # --- in the engine's thread --------------------------------------------------------------------------------------

    def _release_accelerators(self, engine: Engine, tensor_parallel: int) -> KeptEngines:
        if self._cache.tensor_parallel != tensor_parallel:
            self._abort(engine, self._attempts.drop_all())
            self._cache.sleep()
        return self._cache.kept()

    def _switch_layout(self, engine: Engine, tensor_parallel: int) -> KeptEngines:
        self._release_accelerators(engine, tensor_parallel)
        try:
            self._cache.switch(tensor_parallel)
        except Exception as error:
            log.exception("no engine of tensor parallel size %d", tensor_parallel)
            raise Refused(
                f"replica {self.name}: no engine of tensor parallel size {tensor_parallel}: {error}"
            ) from error
        return self._cache.kept()

    def _abort(self, engine: Engine, ids: Sequence[str]) -> None:
        engine.abort(list(ids))
        self._stops.forget(ids)
        self._meter.forget(ids)

    def _export_kv(self, engine: Engine, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        if self._kv is None or self._cache.tensor_parallel is None:
            receipt = KvExport(None, {}, 0, 0.0, KvRefusal.UNSUPPORTED, "this replica transfers no KV")
        else:
            receipt = self._kv.export(self._cache.kv_engine(), attempts, self._attempts.active(attempts))
        self._abort(engine, self._attempts.abort(attempts))
        return receipt

    def _start(self, engine: Engine, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            if engine.weight_version is None or request.weight_version != engine.weight_version:
                raise WrongVersion(
                    f"{request.key}: weight version {request.weight_version} is requested, replica {self.name} holds "
                    f"{engine.weight_version}"
                )
            try:
                engine.check(self._engine_request(request))
            except RequestRejected as error:
                raise Refused(f"{request.key}: {error}") from error
            if request.sampling.stop_strings:
                self._stops.open()
        admitted = self._attempts.admit(requests)
        self._abort(engine, admitted.replaced)
        asked = [self._engine_request(request) for request in admitted.started]
        if self._kv is not None:
            asked = self._kv.with_kv(self._cache.kv_engine(), admitted.started, asked)
        self._meter.start(asked)
        for request, one in zip(admitted.started, asked, strict=True):
            engine.add(one)
            self._stops.start(one.id, request.sampling.stop_strings, request.prefix_token_ids)

    def _load(self, engine: Engine, version: int) -> int:
        if engine.weight_version == version:
            return version
        if len(self._attempts):
            raise Refused(f"replica {self.name} holds {len(self._attempts)} requests; abort them before a load")
        try:
            loaded = self._load_newest(engine, version)
        except VersionUnavailable as error:
            raise WrongVersion(str(error)) from error
        except (WeightMismatch, NoLayout) as error:
            raise Refused(str(error)) from error
        self._attempts.forget()
        if self._kv is not None:
            self._kv.drop_other_versions(loaded)
            self._kv.measure(self._cache.kv_engine())
        return loaded

    def _begin_profile(self, engine: Engine, limits: ProfileLimits) -> Future[EngineProfile]:
        if engine.weight_version is None:
            raise Refused(f"replica {self.name} has no weights to profile")
        if len(self._attempts):
            raise Refused(f"replica {self.name} holds {len(self._attempts)} requests; abort them before a profile")
        return self._profiler.begin(engine, limits)

    def _probe_kv(self, ids: Sequence[str]) -> KvStats:
        return KvStats() if self._kv is None else self._kv.probe(self._cache.kv_engine(), ids)

    def _ended(self) -> None:
        self._profiler.close(EngineDied("the engine has ended"))
        self._outbox.wake()

    def _load_newest(self, engine: Engine, version: int) -> int:
        """Load this version, or the newer one that the relay holds by then.

        The relay continues while its version is being opened, so a load may have to retry with a newer one.
        """
        for _ in range(LOADS):
            try:
                engine.load(version)
            except VersionUnavailable as error:
                if error.held is None or error.held <= version:
                    raise
                version = error.held
            else:
                return version
        raise VersionUnavailable(version, None)

    def _changed(self, engine: Engine, outputs: list[StepOutput], seconds: float | None) -> None:
        profiles = self._profiler.runs
        outputs, ended = self._stops.cut(self._profiler.stepped(engine, outputs))
        if ended:
            engine.abort(ended)
        stats = self._profiler.without_profiles(engine.stats())
        if seconds is not None and not profiles:
            self._meter.step(outputs, stats.running, seconds)
        stats = replace(stats, decode=self._meter.decode, prefill=self._meter.prefill)
        if self._kv is not None:
            asleep = self._cache.tensor_parallel is None
            stats = replace(stats, kv=stats.kv + self._kv.stats, kv_size=None if asleep else self._kv.size)
        self._outbox.put(self._deltas(outputs, engine.weight_version), stats, engine.weight_version)

    def _deltas(self, outputs: list[StepOutput], weight_version: int | None) -> list[Delta]:
        if not outputs:
            return []
        if weight_version is None:
            raise RuntimeError("the engine generated without weights")
        return self._attempts.deltas(outputs, weight_version)

    def _engine_request(self, request: GenerateRequest) -> EngineRequest:
        sampling = request.sampling
        stops = frozenset(sampling.stop_token_ids)
        return EngineRequest(
            id=engine_id(request.key, request.attempt),
            token_ids=request.prompt_token_ids + request.prefix_token_ids,
            max_new_tokens=sampling.max_tokens - len(request.prefix_token_ids),
            generated=len(request.prefix_token_ids),
            temperature=sampling.temperature,
            seed=sampling.seed,
            stop_token_ids=stops if sampling.ignore_eos else stops | self._eos,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            priority=request.priority,
        )
