"""vLLM worker extension: loads weights inside vLLM's workers (`worker_extension_cls`) from the relay's segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljob_runtime.rollout.engines.vllm_compat import repair_tied_head, report_all_tokens
from rljob_runtime.rollout.engines.weights import open_version


class RelayWeights:
    """Mix-in of the worker class of vLLM, whose `reload_weights` and `model_runner` it uses."""

    def report_all_tokens(self: Any) -> None:
        """Report log-probabilities of the tempered distribution over all tokens."""
        report_all_tokens(self.model_runner.sampler)

    def load_from_relay(self: Any, path: str, version: int) -> None:
        """Load this rank's slice of `version`. Only a path crosses the process boundary, never tensors."""
        self.reload_weights(weights_iterator=open_version(Path(path), version))
        repair_tied_head(self.model_runner.model)
