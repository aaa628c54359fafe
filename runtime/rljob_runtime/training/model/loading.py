"""Model loading: describes a model on the meta device, shards it, and reads each rank's slices of the files.

transformers builds a model without memory and then reads its files. In between, `fully_shard` turns its parameters into
shards, so the reader takes only this rank's slices. No rank ever holds more than its share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from rljob_runtime.training.model import attention
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.memory import ModelSize
from rljob_runtime.training.model.sharding import RankGroup, decoder_layers


def on_meta_device(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Build the model of this config on the meta device: shapes without memory.

    Raises `UnsupportedModel` for a model that selects its attention function from its own list.
    """
    attention.register()
    try:
        with torch.device("meta"):
            made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    except KeyError as error:
        raise UnsupportedModel(
            f"{config.model_type} cannot be trained: it has no attention function of the name {error}"
        ) from error
    model: PreTrainedModel = made
    return model


def empty_sharded_model(
    folder: Path, stored: torch.dtype, compute_dtype: torch.dtype, ranks: RankGroup
) -> PreTrainedModel:
    """Build the model of a folder's `config.json`, sharded over `ranks`, ready to receive weights.

    Weights are stored as `stored` and computed with as `compute_dtype`. The publisher of the weights has verified the
    model for the job's sequences. Raises `UnsupportedModel`.
    """
    attention.register()
    try:
        config = AutoConfig.from_pretrained(folder)
        with init_empty_weights(include_buffers=False):
            model: Any = AutoModelForCausalLM.from_config(
                config, dtype=compute_dtype, attn_implementation=attention.NAME
            )
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModel(f"cannot make a causal language model of {folder}: {error}") from error
    model.tie_weights()  # tied weights are one shard
    for parameter in model.parameters():
        parameter.data = parameter.data.to(stored)
    ranks.shard(model, compute_dtype)
    own: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in own:
                own[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device=ranks.device))
            setattr(module, name, own[id(parameter)])
    model.to(ranks.device)
    ready: PreTrainedModel = model.eval()
    return ready


def size_of(model: PreTrainedModel) -> ModelSize:
    """Return the size of a model on the meta device."""
    layers = decoder_layers(model)
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    total = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(
        parameters=total,
        largest_layer=max(counts, default=0),
        outside=total - sum(counts),
        vocabulary=int(model.config.vocab_size),
        hidden=int(model.config.hidden_size),
        layers=len(layers),
    )


def load_shards(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, device: str, ranks: RankGroup
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load the weights of `folder` into a model sharded over `ranks`.

    Returns the model and the loading report of transformers. Raises `UnsupportedModel` when slices of the files are no
    slices of the weights.
    """
    kind, splits = type(on_meta_device(config, dtype)), ranks.mesh is not None
    loaded: Any = (_sharding_before_reading(kind, ranks) if splits else kind).from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention.NAME,
        output_loading_info=True,
        # transformers reserves memory for the whole model on an accelerator. Shards are loaded through the host
        # instead.
        device_map=None if splits else {"": device},
    )
    model, info = loaded
    if splits:
        _check_slices(model)
        _check_split(model)
        model.to(device)
    return model, info


def _sharding_before_reading(kind: type[PreTrainedModel], ranks: RankGroup) -> type[PreTrainedModel]:
    """Return a subclass that shards the model before it reads the files.

    It keeps the name and module of its parent, because transformers uses them to find the file layout of the family.
    """
    read = kind._load_pretrained_model

    def split_and_read(model: PreTrainedModel, *arguments: Any, **named: Any) -> Any:
        model.tie_weights()  # tied weights are one shard
        ranks.shard(model)
        return read(model, *arguments, **named)

    methods = {"__module__": kind.__module__, "_load_pretrained_model": staticmethod(split_and_read)}
    return type(kind.__name__, (kind,), methods)


def _check_split(model: PreTrainedModel) -> None:
    """Raise `UnsupportedModel` for a parameter that is not sharded.

    A release of transformers that bypasses our reader would give each rank a full model and its gradients.
    """
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise UnsupportedModel(
                f"transformers {transformers.__version__} reads models another way than this runtime knows: {name} is "
                "not split over the trainer's ranks; the release that the package asks for would be right"
            )


def _check_slices(model: PreTrainedModel) -> None:
    """Raise `UnsupportedModel` for files whose tensors are joined along the dimension of the shards.

    Slices of such files, joined, are not shards.
    """
    for conversion in getattr(model, "_weight_conversions", None) or []:
        if not isinstance(conversion, WeightConverter):
            continue
        for operation in conversion.operations:
            stacks = isinstance(operation, MergeModulelist) and operation.dim == 0
            joins = isinstance(operation, Concatenate) and operation.dim != 0
            if not stacks and not joins:
                raise UnsupportedModel(
                    f"model_type {model.config.model_type!r}: its files are read by {type(operation).__name__}, which "
                    "cannot be done in slices; one trainer rank (spec.trainer.replicas: 1) would be right"
                )
