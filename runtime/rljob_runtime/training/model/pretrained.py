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
from rljob_runtime.training.model.loading import fill
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.model.verification import verify

LAYERS = {"full_attention", "sliding_attention"}
"""What config.json's `layer_types` may hold. What else a layer does is found by computing (`verification`)."""


def check_supported(config: PretrainedConfig, longest: int | None = None) -> None:
    """Raise `UnsupportedModel`, which names the field, for what packing is known not to reproduce. `longest`: the
    tokens of the longest sequence that will be asked for; None for any."""
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
    """The config of a folder that can be trained, as far as the config says. Raises `UnsupportedModel`."""
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
    """The model of a Hugging Face folder in `dtype`, all parameters trainable, dropout off, and verified for sequences
    of up to `longest` tokens. Of several `ranks` each has its shard of it: a collective.

    Raises `UnsupportedModel` when the folder is not a causal language model with all its weights, or when packed rows
    of it are not computed as the model computes single sequences.
    """
    attention.register()
    config = read_config(folder, longest)
    try:
        model, info = fill(folder, config, dtype, device, ranks or RankGroup())
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
    """The same for every layer."""
    return re.sub(r"\d+", "N", name)


def empty_model(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """The model that the `config.json` of a folder describes, as `load_model` makes it, before it has weights. Raises
    `UnsupportedModel`. Whoever published the weights has verified it for the job's sequences."""
    attention.register()
    try:
        config = AutoConfig.from_pretrained(folder)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot make a causal language model of {folder}: {error}") from error
    ready: PreTrainedModel = made.to(device).eval()
    return ready
