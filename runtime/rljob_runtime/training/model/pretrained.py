"""Pretrained models: reads, checks, loads and verifies the model of a Hugging Face folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rljob_runtime.models.context_length import length_refusal
from rljob_runtime.training.model import attention
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.loading import load_shards
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.model.verification import verify

LAYERS = {"full_attention", "sliding_attention"}
"""Supported values of config.json's `layer_types`. `verification` finds other differences of layers by computing."""


def check_supported(config: PretrainedConfig, longest: int | None = None) -> None:
    """Raise `UnsupportedModel`, which names the field, for models that packing cannot reproduce.

    `longest` is the number of tokens of the longest sequence; None for any.
    """
    kinds = set(getattr(config, "layer_types", None) or []) - LAYERS
    if kinds:
        raise UnsupportedModel(
            f"config.json has layer_types {', '.join(sorted(kinds))}; "
            f"only {' and '.join(sorted(LAYERS))} can be trained"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise UnsupportedModel("config.json sets attn_logit_softcapping; only plain softmax attention can be trained")
    if refusal := length_refusal(config, longest):
        raise UnsupportedModel(refusal)


def read_config(folder: Path, longest: int | None = None) -> PretrainedConfig:
    """Read the config of a folder and check that it can be trained, as far as the config shows.

    Raises `UnsupportedModel`.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot read the config of a language model from {folder}: {error}") from error
    check_supported(config, longest)
    return config


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    longest: int | None = None,
    ranks: RankGroup | None = None,
) -> PreTrainedModel:
    """Load the model of a Hugging Face folder in `dtype`: all parameters trainable, dropout off, verified.

    It is verified for sequences of up to `longest` tokens. With several `ranks` each holds its shard: a collective.

    Raises `UnsupportedModel` when the folder is not a causal language model with all its weights. It also raises when
    packed rows differ from the model's own computation of single sequences.
    """
    attention.register()
    config = read_config(folder, longest)
    try:
        model, info = load_shards(folder, config, dtype, device, ranks or RankGroup())
    except UnsupportedModel:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UnsupportedModel(f"cannot load a causal language model from {folder}: {error}") from error
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise UnsupportedModel(
            f"{folder}: {len(missing)} weights are missing or of another shape, the first is {missing[0]}; "
            "the folder must hold all weights that its config.json describes"
        )
    layers = {_numbered(name) for name, _ in model.named_parameters()}
    beyond = sorted(name for name in info["unexpected_keys"] if _numbered(name) in layers)
    if beyond:
        raise UnsupportedModel(
            f"{folder}: {len(beyond)} weights belong to layers that config.json does not have, the first is "
            f"{beyond[0]}; its number of layers must be that of the weights"
        )
    ready: PreTrainedModel = model.eval()
    verify(Policy(ready, temperature=1.0, autocast=False), longest)
    return ready


def _numbered(name: str) -> str:
    """Replace the numbers in a name, so that all layers have the same name."""
    return re.sub(r"\d+", "N", name)


def empty_model(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """Build the model of a folder's `config.json` as `load_model` does, without weights.

    Raises `UnsupportedModel`. The publisher of the weights has verified the model for the job's sequences.
    """
    attention.register()
    try:
        config = AutoConfig.from_pretrained(folder)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot make a causal language model of {folder}: {error}") from error
    ready: PreTrainedModel = made.to(device).eval()
    return ready
