"""Trainer settings of a rank: model, folders, device and the sizes of a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_runtime.training.config import TrainingConfig

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of a rank besides its number."""

    training: TrainingConfig
    model_source: str
    cache_folder: Path
    """Folder for models that must be downloaded or unpacked."""
    checkpoint_folder: Path
    export_folder: Path
    keep_checkpoints: int = 2
    device: str = "cpu"
    longest: int | None = None
    """Tokens of the longest training sequence: a prompt and a response. None for any length."""
    step_tokens: int = 0
    """Largest number of tokens in a step. 0 when unknown."""
    early: bool = False
    """Whether every step receives groups before its update."""

    @classmethod
    def from_spec(cls, spec: RLJobSpec, *, volume: Path, cache_folder: Path, device: str = "cpu") -> TrainerSettings:
        """Build the settings of a job whose checkpoint volume is mounted at `volume`."""
        algorithm, data = spec.algorithm, spec.data
        group = data.max_prompt_tokens + algorithm.responses_per_prompt * data.max_response_tokens
        return cls(
            training=TrainingConfig.from_spec(spec),
            model_source=spec.model.source,
            cache_folder=cache_folder,
            checkpoint_folder=volume / "checkpoints",
            export_folder=volume / "model",
            keep_checkpoints=spec.checkpoint.keep,
            device=device,
            longest=data.max_prompt_tokens + data.max_response_tokens,
            step_tokens=algorithm.prompts_per_round * group,
            early=spec.stream_training.enabled is True,
        )
