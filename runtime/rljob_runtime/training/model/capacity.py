"""Refusing, before anything is loaded, a job whose ranks cannot hold what it asks for."""

from __future__ import annotations

from pathlib import Path

import torch

from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.loading import described, size_of
from rljob_runtime.training.model.memory import Work, account, computes_again, host_memory, refusal
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
    """Raise `UnsupportedModel`, with the sum, where a rank needs more than its device has. `step_tokens`: the most that
    a step can have; `early`: whether groups are trained on while others generate."""
    size = size_of(described(read_config(folder, longest), config.compute_dtype))
    published: torch.dtype = getattr(torch, config.dtype)
    work = Work(
        ranks=ranks,
        # As `gradients` makes rows: the ranks share what would fit into one, and a long response has a row of its own.
        row=min(config.max_tokens_per_microbatch, max(longest or 0, -(-step_tokens // ranks))),
        rounded=published.itemsize < config.compute_dtype.itemsize,
        logit=2 if config.autocast else config.compute_dtype.itemsize,
        reference=config.kl_coefficient > 0,
        early=early,
        checkpointed=computes_again(device, ranks),
    )
    if why := refusal(account(size, work), *_memory(device)):
        raise UnsupportedModel(why)


def _memory(device: str) -> tuple[int, str]:
    """Bytes, and whose."""
    if device == "cpu":
        return host_memory(), "this host"
    properties = torch.cuda.get_device_properties(device)
    return int(properties.total_memory), properties.name
