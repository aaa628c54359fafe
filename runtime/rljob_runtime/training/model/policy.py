"""Policy: a Hugging Face causal language model that computes logprobs of packed rows with dtype-rounded weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rljob_runtime.training.model import attention
from rljob_runtime.training.model.packing import MicroBatch
from rljob_runtime.training.model.sharding import decoder_layers
from rljob_runtime.training.model.token_logprobs import Entropy, token_logprobs


class Policy:
    """Computes token logprobs of a model at a sampling temperature.

    `model` holds the weights of the computation, rounded to the published dtype in whatever format they are stored.
    With `autocast`, matrix products run in bfloat16. Logits are converted to `dtype` for the softmax; the default is
    the format of the parameters.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, autocast: bool, dtype: torch.dtype | None = None):
        self.model = model
        self.temperature = temperature
        self.autocast = autocast
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = dtype or parameter.dtype
        self.vocabulary = int(model.config.vocab_size)

    def logprobs(self, batch: MicroBatch, *, entropy: Entropy = Entropy.VALUE) -> tuple[Tensor, Tensor]:
        """Compute the log probability of each target, [N], and the entropy of its distribution, [N] or empty.

        Logits exist only for positions that predict a loss token: [U, vocabulary].
        """
        # A cached cast outlives the layer that was gathered for it. A rank would then hold all weights.
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
        """Compute logprobs without gradient, [N], as for a reference model."""
        return self.logprobs(batch, entropy=Entropy.NONE)[0]

    def enable_checkpointing(self) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations.

        The model stays as it was verified. Checkpointing in transformers requires training mode, in which some layers
        draw random numbers.
        """
        for layer in decoder_layers(self.model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
