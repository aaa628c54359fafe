"""Rollout replica: the coordinator's protocol in front of one engine slot.

It stamps every token with the version that made it, keeps deltas until they are acknowledged, and gives a repeated
command the same answer. Leases, terms and versions are checked here, so an engine knows none of them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from rljob_runtime.protocols import Delta, GenerateRequest, PeerGone, Refused, ReplicaReport, TermFence, WrongVersion
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.rollout.attempts import AttemptTracker, engine_id
from rljob_runtime.rollout.engine_cache import EngineCache, NoLayout
from rljob_runtime.rollout.engine_thread import EngineDied, EngineThread
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, RequestRejected, SleepableEngine, StepOutput
from rljob_runtime.rollout.engines.weights import VersionUnavailable, WeightMismatch
from rljob_runtime.rollout.outbox import Outbox

Result = TypeVar("Result")
log = logging.getLogger(__name__)

LOADS = 8
"""Attempts of a load while the relay commits newer versions."""
CLOSE_SECONDS = 30.0
"""Limit of a clean end: the step in progress plus the engine's shutdown."""


class RolloutReplica:
    """`protocols.Replica` over the engines that `make_engine(tensor_parallel, devices)` builds in the engine's thread.

    No engine is in use until the first layout. `eos_token_ids` end a response unless its sampling ignores them.
    `close_maker` is called after the last engine has ended. All methods may be called from any event loop.
    """

    def __init__(
        self,
        name: str,
        make_engine: Callable[[int, Sequence[str]], SleepableEngine],
        eos_token_ids: frozenset[int],
        close_maker: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.boot = uuid.uuid4().hex
        self._eos = eos_token_ids
        self._fence = TermFence(f"replica {name}")
        self._attempts = AttemptTracker()
        self._outbox = Outbox(self.boot)
        self._devices: tuple[str, ...] = ()
        self._cache = EngineCache(lambda size: make_engine(size, self._devices), close_maker)
        self._engine = EngineThread(name, lambda: self._cache, self._changed, self._outbox.wake)

    async def ready(self) -> None:
        """Wait until the engine's thread serves. Raises `PeerGone` with the cause if it has ended."""
        await self._on_engine(lambda engine: None)

    async def adopt(self, devices: Sequence[str]) -> None:
        """Set the accelerators (values of CUDA_VISIBLE_DEVICES) of this engine slot and the slots after it."""
        self._devices = tuple(devices)

    async def release_accelerators(self, term: int, tensor_parallel: int) -> None:
        """See `protocols.Replica.release_accelerators`."""
        self._fence.check(term)
        await self._on_engine(lambda engine: self._release_accelerators(engine, tensor_parallel))

    async def switch_layout(self, term: int, tensor_parallel: int) -> None:
        """See `protocols.Replica.switch_layout`."""
        self._fence.check(term)
        await self._on_engine(lambda engine: self._switch_layout(engine, tensor_parallel))

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """See `protocols.Replica.submit`.

        Submits all or none: one impossible request refuses the batch with its reason.
        """
        self._fence.check(term)
        await self._on_engine(lambda engine: self._start(engine, requests))

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """See `protocols.Replica.abort`."""
        self._fence.check(term)
        await self._on_engine(lambda engine: engine.abort(self._attempts.abort(attempts)))

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`."""
        self._fence.check(term)
        if wait_seconds > 0 and not self._engine.ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(self._outbox.ready(after)), wait_seconds)
        if self._engine.ended:
            await self.ready()  # Raises PeerGone with the cause.
        return self._outbox.take(after)

    async def load(self, term: int, version: int) -> int:
        """See `protocols.Replica.load`. A loaded version is not loaded again."""
        self._fence.check(term)
        return await self._on_engine(lambda engine: self._load(engine, version))

    async def close(self) -> None:
        """End the engine after the step in progress; waiting callers receive `PeerGone`."""
        if not await asyncio.to_thread(self._engine.close, CLOSE_SECONDS):
            raise PeerGone(f"replica {self.name}: the engine did not end within {CLOSE_SECONDS:.0f} s")

    async def _on_engine(self, work: Callable[[Engine], Result]) -> Result:
        try:
            # Shielded: a caller that times out must not cancel a command that the engine may have started.
            return await asyncio.shield(asyncio.wrap_future(self._engine.call(work)))
        except EngineDied as error:
            raise PeerGone(f"replica {self.name}: {error}") from error

    # --- in the engine's thread --------------------------------------------------------------------------------------

    def _release_accelerators(self, engine: Engine, tensor_parallel: int) -> None:
        if self._cache.tensor_parallel == tensor_parallel:
            return
        engine.abort(self._attempts.drop_all())
        self._cache.sleep()

    def _switch_layout(self, engine: Engine, tensor_parallel: int) -> None:
        self._release_accelerators(engine, tensor_parallel)
        try:
            self._cache.switch(tensor_parallel)
        except Exception as error:
            log.exception("no engine of tensor parallel size %d", tensor_parallel)
            raise Refused(
                f"replica {self.name}: no engine of tensor parallel size {tensor_parallel}: {error}"
            ) from error

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
        admitted = self._attempts.admit(requests)
        engine.abort(list(admitted.replaced))
        for request in admitted.started:
            engine.add(self._engine_request(request))

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
        return loaded

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

    def _changed(self, engine: Engine, outputs: list[StepOutput]) -> None:
        self._outbox.put(self._deltas(outputs, engine.weight_version), engine.stats(), engine.weight_version)

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
        )
