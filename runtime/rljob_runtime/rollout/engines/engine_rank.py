"""Engine rank: the part of an engine that runs in one rank process.

The process is forked by the fork server and commanded over its socket.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, ClassVar


class EngineRank:
    """Engine of one rank. Its methods are the commands of the connection."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._engine: Any = None
        self._leads = True

    def build(self, settings: Any) -> None:
        """Build this rank's engine from `settings`."""
        from rljob_runtime.rollout.engines.factory import make_engine

        os.environ.update(
            RANK=str(settings.rank), LOCAL_RANK=str(settings.rank), WORLD_SIZE=str(settings.tensor_parallel)
        )
        self._leads = settings.rank == 0
        self._engine = make_engine(self.kind, settings)

    def step(self) -> Any:
        """Run one step; return the outputs (first rank only), a number to compare them by, and the state."""
        outputs = self._engine.step()
        return (outputs if self._leads else None), agreement(outputs), self.state()

    def state(self) -> Any:
        """Return (busy, stats) on the first rank, None on the others."""
        return (self._engine.busy, self._engine.stats()) if self._leads else None

    def add(self, request: Any) -> Any:
        """Queue a request."""
        self._engine.add(request)
        return self.state()

    def abort(self, ids: list[str]) -> Any:
        """Drop these requests."""
        self._engine.abort(ids)
        return self.state()

    def load(self, version: int) -> Any:
        """Load `version` from the relay's segment."""
        self._engine.load(version)
        return self.state()

    def check(self, request: Any) -> None:
        """Raise `RequestRejected` if the request can never be served."""
        self._engine.check(request)

    def kv_shape(self) -> Any:
        """Return what the blocks of this engine contain."""
        return self._engine.kv_shape()

    def kv_held(self, ids: list[str]) -> Any:
        """Return what each request holds in full blocks (first rank only)."""
        return self._engine.kv_held(ids) if self._leads else None

    def kv_write(self, path: Any, index: Any, names: dict[str, str]) -> Any:
        """Copy this rank's heads to the file; return their checksums."""
        return self._engine.kv_write(path, index, names)

    def kv_open(self, tickets: Any) -> Any:
        """Return which tickets this rank can use."""
        return self._engine.kv_open(tickets)

    def kv_read(self, tickets: Any) -> Any:
        """Copy this rank's heads of running requests back to their blocks; return what that took."""
        return self._engine.kv_read(tickets)

    def sleep(self) -> Any:
        """Release memory and drop the weights."""
        self._engine.sleep()
        return self.state()

    def wake(self) -> None:
        """Make the engine ready for a `load`."""
        self._engine.wake()

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()


class VLLMRank(EngineRank):
    """Rank of a vLLM engine."""

    kind = "VLLM"

    @staticmethod
    def warm_up() -> None:
        """Import vLLM before ranks are forked."""
        from rljob_runtime.rollout.engines import vllm_compat

        vllm_compat.warm_up()

    def build(self, settings: Any) -> None:
        """Build the engine, and unlink the queue that vLLM names in shared memory."""
        super().build(settings)
        from rljob_runtime.rollout.engines import vllm_compat

        vllm_compat.unlink_message_queue()


class ReferenceRank(EngineRank):
    """Rank of the reference engine."""

    kind = "Reference"

    @staticmethod
    def warm_up() -> None:
        """Import the reference engine before ranks are forked."""
        import torch

        importlib.import_module("rljob_runtime.rollout.engines.reference.engine")
        torch.set_num_threads(1)


def agreement(outputs: list[Any]) -> int:
    """Return a number that differs if the tokens of a step differ."""
    return hash(tuple(output.token_ids for output in outputs))
