"""What a rank process of an engine is: the engine of its part of the model, behind the fork server's socket."""

from __future__ import annotations

import importlib
import os
from typing import Any, ClassVar


class EngineRank:
    """The engine of one rank, its methods as they are asked for over the connection."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._engine: Any = None
        self._leads = True

    def build(self, settings: Any) -> None:
        from rljob_runtime.rollout.engines.factory import make_engine

        os.environ.update(
            RANK=str(settings.rank), LOCAL_RANK=str(settings.rank), WORLD_SIZE=str(settings.tensor_parallel)
        )
        self._leads = settings.rank == 0
        self._engine = make_engine(self.kind, settings)

    def step(self) -> Any:
        """All outputs from the first rank; from the others what tells whether theirs are the same."""
        outputs = self._engine.step()
        return (outputs if self._leads else None), agreement(outputs), self.state()

    def state(self) -> Any:
        """Of the first rank: busy, stats."""
        return (self._engine.busy, self._engine.stats()) if self._leads else None

    def add(self, request: Any) -> Any:
        self._engine.add(request)
        return self.state()

    def abort(self, ids: list[str]) -> Any:
        self._engine.abort(ids)
        return self.state()

    def load(self, version: int) -> Any:
        self._engine.load(version)
        return self.state()

    def check(self, request: Any) -> None:
        self._engine.check(request)

    def sleep(self) -> Any:
        self._engine.sleep()
        return self.state()

    def wake(self) -> None:
        self._engine.wake()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class VLLMRank(EngineRank):
    """A rank of vLLM."""

    kind = "VLLM"

    @staticmethod
    def warm_up() -> None:
        """Import it."""
        from rljob_runtime.rollout.engines import vllm_compat

        vllm_compat.warm_up()

    def build(self, settings: Any) -> None:
        super().build(settings)
        from rljob_runtime.rollout.engines import vllm_compat

        vllm_compat.unlink_message_queue()


class ReferenceRank(EngineRank):
    """A rank of the reference engine."""

    kind = "Reference"

    @staticmethod
    def warm_up() -> None:
        """Import it."""
        import torch

        importlib.import_module("rljob_runtime.rollout.engines.reference.engine")
        torch.set_num_threads(1)


def agreement(outputs: list[Any]) -> int:
    """A number that differs where the tokens of a step do."""
    return hash(tuple(output.token_ids for output in outputs))
