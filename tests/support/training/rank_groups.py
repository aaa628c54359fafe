"""Trainers of several ranks, each a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rljob_runtime.training.checkpoint.store import TENSORS
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.ranks.group import TrainerGroup
from rljob_runtime.training.ranks.local_rank import LocalRank
from rljob_runtime.training.ranks.rank import TrainerRank
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.rank_process import ProcessRank
from tests.support.training.toys import FakePublisher


def settings_of(model: Path, volume: Path, **config: Any) -> TrainerSettings:
    fields: dict[str, Any] = {"dtype": "float64", "learning_rate": 1e-2, **config}
    return TrainerSettings(
        training=TrainingConfig(**fields),
        model_source=str(model),
        cache_folder=volume / "cache",
        checkpoint_folder=volume / "checkpoints",
        export_folder=volume / "model",
    )


@asynccontextmanager
async def trainer(settings: TrainerSettings, size: int) -> AsyncIterator[TrainerGroup]:
    if size == 1:
        rank = LocalRank(TrainerRank(settings, FakePublisher))
        yield TrainerGroup([rank])
        await rank.close()
        return
    ranks = [ProcessRank(settings, number, size) for number in range(size)]
    try:
        yield TrainerGroup(ranks)
    finally:
        for process in ranks:
            process.end()


def stored(settings: TrainerSettings, step: int) -> dict[str, torch.Tensor]:
    return load_file(settings.checkpoint_folder / f"step-{step:08d}" / TENSORS)
