"""The policy: a Hugging Face causal language model that computes logprobs of packed rows with dtype-rounded weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rljob_runtime.training.model import attention
from rljob_runtime.training.model.packing import MicroBatch
from rljob_runtime.training.model.sharding import layers_of
from rljob_runtime.training.model.token_logprobs import token_logprobs


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
