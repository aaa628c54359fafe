"""Our method inside vLLM's worker processes (`worker_extension_cls`): each maps the relay's segment by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljob_runtime.rollout.engines.vllm_compat import repair_tied_head
from rljob_runtime.rollout.engines.weights import open_version


class RelayWeights:
    """Mixed into vLLM's worker class, hence `self: Any`: it has the worker's `reload_weights` and `model_runner`."""

    def load_from_relay(self: Any, path: str, version: int) -> None:
        """Load this rank's slice of `version`. Only a path crosses the process border, never tensors."""
        self.reload_weights(weights_iterator=open_version(Path(path), version))
        repair_tied_head(self.model_runner.model)
