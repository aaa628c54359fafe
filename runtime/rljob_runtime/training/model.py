"""The policy: a Hugging Face causal language model that computes logprobs of packed rows with dtype-rounded weights."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rljob_runtime.models.lengths import length_refusal
from rljob_runtime.training import attention
from rljob_runtime.training.attention import UnsupportedModel
from rljob_runtime.training.loading import fill
from rljob_runtime.training.packing import MicroBatch
from rljob_runtime.training.sharding import RankGroup, layers_of
from rljob_runtime.training.token_logprobs import token_logprobs
from rljob_runtime.training.verification import verify

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


class Policy:
    """Token logprobs of a model at a sampling temperature.

    `model` holds the weights that the computation uses (rounded to the published dtype, whatever format they are
    stored in). With `autocast` matrix products run in bfloat16; logits are turned to `dtype` for the softmax, the
    parameters' format where none is given.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, autocast: bool, dtype: torch.dtype | None = None):
        self.model = model
        self.temperature = temperature
        self.autocast = autocast
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = dtype or parameter.dtype
        self.vocabulary = int(model.config.vocab_size)

    def logprobs(self, batch: MicroBatch, *, entropy: bool = True) -> tuple[Tensor, Tensor | None]:
        """([N], [N]): log probability of each target, and the entropy of the distribution that it was drawn from
        (without gradient). Logits exist only for positions that predict a loss token: [U, vocabulary]."""
        # A cast that is kept would outlive the layer that was made whole for it: a rank would hold all weights.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            output = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.position_ids[None],
                logits_to_keep=batch.logit_rows,
                segments=attention.Segments(batch.segments, self.device),
                use_cache=False,
            )
        return token_logprobs(
            output.logits[0],
            batch.target_rows,
            batch.targets,
            temperature=self.temperature,
            dtype=self.dtype,
            entropy=entropy,
        )

    @torch.no_grad()
    def frozen_logprobs(self, batch: MicroBatch) -> Tensor:
        """[N] logprobs without gradient: what a reference model is asked for."""
        return self.logprobs(batch, entropy=False)[0]

    def enable_checkpointing(self) -> None:
        """Compute each layer again in the backward pass instead of keeping what it has computed. The model stays as it
        was verified: transformers' own way wants training mode, in which some layers draw random numbers."""
        for layer in layers_of(self.model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
