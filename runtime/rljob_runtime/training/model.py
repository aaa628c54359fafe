"""The policy: a Hugging Face causal language model that computes logprobs of packed rows with dtype-rounded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rljob_runtime.training import attention
from rljob_runtime.training.packing import MicroBatch
from rljob_runtime.training.token_logprobs import token_logprobs


class UnsupportedModel(ValueError):
    """The model folder cannot be trained; the message says why."""


def check_supported(config: PretrainedConfig) -> None:
    """Raise `UnsupportedModel` for an attention that packing does not reproduce."""
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if kinds:
        raise UnsupportedModel(f"layers of kind {', '.join(sorted(kinds))}; only full causal attention can be trained")
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, field, None):
            raise UnsupportedModel(f"config.json sets {field}; only plain softmax attention can be trained")


def load_model(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """The model of a Hugging Face folder in `dtype`, all parameters trainable, dropout off.

    Raises `UnsupportedModel` when the folder is not a causal language model with all its weights.
    """
    attention.register()
    try:
        config = AutoConfig.from_pretrained(folder)
        check_supported(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=attention.NAME, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot load a causal language model from {folder}: {error}") from error
    model, info = loaded
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise UnsupportedModel(
            f"{folder}: {len(missing)} weights are missing or of another shape, the first is {missing[0]}; "
            "the folder must hold all weights that its config.json describes"
        )
    if getattr(model.config, "_attn_implementation", None) != attention.NAME:
        raise UnsupportedModel(f"{folder}: {type(model).__name__} does not take an attention function of ours")
    ready: PreTrainedModel = model.to(device).eval()
    return ready


def empty_model(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """The model that the `config.json` of a folder describes, as `load_model` makes it, before it has weights. Raises
    `UnsupportedModel`."""
    attention.register()
    try:
        config = AutoConfig.from_pretrained(folder)
        check_supported(config)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot make a causal language model of {folder}: {error}") from error
    ready: PreTrainedModel = made.to(device).eval()
    return ready


class Policy:
    """Token logprobs of a model at a sampling temperature.

    `model` holds the weights that the computation uses (rounded to the published dtype, whatever format they are
    stored in). With `autocast` matrix products run in bfloat16; logits are turned to the parameters' format for the
    softmax.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, autocast: bool):
        self.model = model
        self.temperature = temperature
        self.autocast = autocast
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = parameter.dtype
        self.vocabulary = int(model.config.vocab_size)

    def logprobs(self, batch: MicroBatch, *, entropy: bool = True) -> tuple[Tensor, Tensor | None]:
        """([N], [N]): log probability of each target, and the entropy of the distribution that it was drawn from
        (without gradient). Logits exist only for positions that predict a loss token: [U, vocabulary]."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
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
        """Recompute each layer in the backward pass instead of keeping its activations."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.model.train()  # transformers checkpoints in training mode only; attention of ours has no dropout
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
