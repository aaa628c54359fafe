"""Capacity check: refuses a job whose ranks cannot hold its model, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.loading import on_meta_device, size_of
from rljob_runtime.training.model.memory import Work, host_memory, memory_items, recomputes_activations, refusal
from rljob_runtime.training.model.pretrained import read_config


def check_fits(
    folder: Path,
    config: TrainingConfig,
    ranks: int,
    device: str,
    *,
    step_tokens: int,
    early: bool,
    longest: int | None,
) -> None:
    """Raise `UnsupportedModel`, with the memory items, when a rank needs more than its device has.

    `step_tokens` is the largest number of tokens in a step. `early` says whether groups are trained on while others
    generate.
    """
    size = size_of(on_meta_device(read_config(folder, longest), config.compute_dtype))
    published: torch.dtype = getattr(torch, config.dtype)
    work = Work(
        ranks=ranks,
        # Rows follow `batch.rows`: the ranks share what fits into one row, and a long response has its own row.
        row=min(config.max_tokens_per_microbatch, max(longest or 0, -(-step_tokens // ranks))),
        rounded=published.itemsize < config.compute_dtype.itemsize,
        logit=2 if config.autocast(device) else config.compute_dtype.itemsize,
        reference=config.kl_coefficient > 0,
        early=early,
        checkpointed=recomputes_activations(device, ranks),
    )
    if why := refusal(memory_items(size, work), *_memory(device)):
        raise UnsupportedModel(why)


def _memory(device: str) -> tuple[int, str]:
    """Return the bytes of memory of the device, and its name."""
    if device == "cpu":
        return host_memory(), "this host"
    properties = torch.cuda.get_device_properties(device)
    return int(properties.total_memory), properties.name
