"""Model shape: the dimensions of a dense decoder with grouped-query attention that determine its speed.

The named shapes come from the models' published `config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a model, at `dtype_bytes` per parameter and KV entry."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_size: int = 128
    tied_embeddings: bool = False
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for field in (
            "layers",
            "hidden",
            "intermediate",
            "heads",
            "kv_heads",
            "vocabulary",
            "head_size",
            "dtype_bytes",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} is {getattr(self, field)}; it must be 1 or more")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.name}: {self.heads} heads do not share {self.kv_heads} KV heads evenly")

    @property
    def matrix_parameters(self) -> int:
        """Parameters that every token is multiplied with.

        These are the layers and the output head, without norms and biases (less than 0.1 %)."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters. The input embedding is a lookup, and separate unless tied."""
        return self.matrix_parameters + (0 if self.tied_embeddings else self.vocabulary * self.hidden)

    @property
    def square_tokens(self) -> float:
        """Work of attention for a squared token (Σ(L² − L0²)), in work of one token's matrices (PAT eq. 3)."""
        return self.layers * self.heads * self.head_size / self.matrix_parameters

    def kv_token_bytes(self, tensor_parallel: int = 1) -> int:
        """Return the bytes of KV per token on each accelerator.

        With more accelerators than KV heads, heads are replicated."""
        return 2 * self.layers * max(1, self.kv_heads // tensor_parallel) * self.head_size * self.dtype_bytes

    def check_layout(self, tensor_parallel: int) -> None:
        """Raise `ValueError` unless this many accelerators can share the heads."""
        if not self._splits(tensor_parallel):
            fitting = ", ".join(str(size) for size in range(1, self.heads + 1) if self._splits(size))
            raise ValueError(
                f"tensor parallel size {tensor_parallel} does not split the {self.heads} heads and {self.kv_heads} KV "
                f"heads of {self.name} evenly; one of {fitting} would"
            )

    def _splits(self, size: int) -> bool:
        if size < 1 or self.heads % size:
            return False
        return self.kv_heads % size == 0 or size % self.kv_heads == 0

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any], dtype_bytes: int = 2) -> ModelShape:
        """Read a Hugging Face `config.json`. Raises `ValueError` that names a missing key."""
        try:
            heads, hidden = config["num_attention_heads"], config["hidden_size"]
            return cls(
                name=name,
                layers=config["num_hidden_layers"],
                hidden=hidden,
                intermediate=config["intermediate_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                vocabulary=config["vocab_size"],
                head_size=config.get("head_dim") or hidden // heads,
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                dtype_bytes=dtype_bytes,
            )
        except KeyError as error:
            raise ValueError(
                f"{name}: config.json has no {error}; the config of a dense decoder (Llama, Qwen2, Qwen3) would do"
            ) from error


def square_tokens(folder: Path) -> float:
    """Return `ModelShape.square_tokens` of the model whose `config.json` a folder has.

    0 if that says too little, for a mixture of experts, whose tokens are multiplied with a part of the matrices, and
    where a layer attends to a part of the context only."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = ModelShape.from_config(folder.name, config)
        return 0.0 if _is_sparse(config) else shape.square_tokens
    except (OSError, ValueError, TypeError, ZeroDivisionError):
        return 0.0


def _is_sparse(config: Mapping[str, Any]) -> bool:
    has_window = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    other_layers = set(config.get("layer_types") or ()) - {"full_attention"}
    return has_window or bool(other_layers) or any("expert" in key for key in config)


QWEN2_5_7B = ModelShape("Qwen2.5-7B", 28, 3584, 18944, 28, 4, 152064)
QWEN2_5_14B = ModelShape("Qwen2.5-14B", 48, 5120, 13824, 40, 8, 152064)
QWEN2_5_32B = ModelShape("Qwen2.5-32B", 64, 5120, 27648, 40, 8, 152064)
QWEN2_5_72B = ModelShape("Qwen2.5-72B", 80, 8192, 29568, 64, 8, 152064)
QWEN3_8B = ModelShape("Qwen3-8B", 36, 4096, 12288, 32, 8, 151936)
QWEN3_14B = ModelShape("Qwen3-14B", 40, 5120, 17408, 40, 8, 151936)
LLAMA3_1_8B = ModelShape("Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128256)
SMOLLM2_135M = ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 49152, head_size=64, tied_embeddings=True)
SMOLLM2_360M = ModelShape("SmolLM2-360M", 32, 960, 2560, 15, 5, 49152, head_size=64, tied_embeddings=True)
SMOLLM2_1_7B = ModelShape("SmolLM2-1.7B", 24, 2048, 8192, 32, 32, 49152, head_size=64, tied_embeddings=True)

MODELS = {
    shape.name: shape
    for shape in (
        QWEN2_5_7B,
        QWEN2_5_14B,
        QWEN2_5_32B,
        QWEN2_5_72B,
        QWEN3_8B,
        QWEN3_14B,
        LLAMA3_1_8B,
        SMOLLM2_135M,
        SMOLLM2_360M,
        SMOLLM2_1_7B,
    )
}
