"""Trainable models: refuses model folders that are quantised, multimodal, or have a config without sizes.

Each of these loads in some library, and then trains on something else than the engine runs, or ends in a traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from rljob_runtime.models.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FORMATS = ("F64", "F32", "F16", "BF16")
"""Formats of weights that can be trained, as safetensors names them."""


def check_config(config: PretrainedConfig) -> None:
    """Raise `ModelError`, which names the field of config.json, for a config that cannot be trained."""
    quantised: Any = getattr(config, "quantization_config", None)
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        raise ModelError(
            f"config.json has quantization_config (quant_method {method!r}); weights in {', '.join(FORMATS)} and no "
            "quantization_config would be right"
        )
    if config.get_text_config() is not config:
        raise ModelError(
            f"config.json has model_type {config.model_type!r}, which takes more than text; a language "
            "model of text alone would be right"
        )
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise ModelError(f"config.json has vocab_size {vocabulary!r}; a number would be right")


def check_formats(file: Path) -> None:
    """Raise `ModelError` for quantised weights.

    Integer buffers are accepted.
    """
    with safe_open(file, "pt") as reader:
        for name in reader.keys():  # noqa: SIM118 - a safetensors reader is no mapping
            stored = reader.get_slice(name).get_dtype()
            if stored not in FORMATS and (name.endswith("weight") or stored.startswith(("F4", "F6", "F8"))):
                raise ModelError(
                    f"{name} in {file.name} is stored as {stored}, and quantised weights cannot be trained; "
                    f"weights in {', '.join(FORMATS)} would be right"
                )
