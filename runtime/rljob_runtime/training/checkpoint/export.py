"""Model export: writes the final model as a Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rljob_runtime.training.checkpoint.safetensors_writer import sync_folder, write_tensors
from rljob_runtime.training.checkpoint.store import CheckpointError, is_full
from rljob_runtime.training.model.sharding import finish_gather, gather_in_order

WEIGHTS = "model.safetensors"


def write_model(
    folder: Path,
    files: Mapping[str, bytes],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    """Write `files` (config, tokenizer) and the weights in `dtype` as `folder`.

    The folder is replaced when everything is written. Raises `CheckpointError` when the disk refuses; an earlier folder
    then stays untouched.
    """
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    walk = gather_in_order(weights.items())
    partial = folder.with_name(f".partial-{folder.name}")
    old = folder.with_name(f".old-{folder.name}")
    try:
        for leftover in (partial, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        for name, raw in files.items():
            (partial / name).write_bytes(raw)
        write_tensors(partial / WEIGHTS, shapes, dtype, walk)
        sync_folder(partial)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the model cannot be exported to {folder}: {error.strerror or error}", full=is_full(error)
        ) from error
    finally:
        finish_gather(walk)  # other ranks gather all tensors in any case
