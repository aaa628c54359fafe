"""Model folder: a local Hugging Face folder whose config, tokenizer and safetensors weights are checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.trainable import check_config, check_formats

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A folder with any of these files has a tokenizer."""
SMALL_FILES = (
    CONFIG,
    GENERATION_CONFIG,
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files that a process needs besides the weights. They travel as bytes to the rollout replicas."""


@dataclass(frozen=True)
class ModelFolder:
    """A checked folder.

    Create one with `ModelFolder.open`.
    """

    path: Path

    @classmethod
    def open(cls, path: Path, source: str | None = None) -> ModelFolder:
        """Check that `path` holds config, tokenizer and weights of one vocabulary.

        Raises `ModelError`. `source` is the user's name of the folder in messages.
        """
        folder = cls(path)
        name = f"model {source or str(path)!r}"
        if not path.is_dir():
            raise ModelError(f"{name}: there is no folder {path}")
        if not (path / CONFIG).is_file():
            raise ModelError(f"{name}: {path} has no {CONFIG}; a Hugging Face model folder would be right")
        if not any((path / file).is_file() for file in TOKENIZER_FILES):
            raise ModelError(f"{name}: {path} has no tokenizer; one of {', '.join(TOKENIZER_FILES)} is needed")
        folder._check_weights(name)
        folder._check_vocabulary(name)
        return folder

    @cached_property
    def config(self) -> PretrainedConfig:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.path)  # type: ignore[no-any-return]

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path)

    def model_files(self) -> dict[str, bytes]:
        """Return the config and tokenizer files by name, without the weights."""
        return {file: (self.path / file).read_bytes() for file in SMALL_FILES if (self.path / file).is_file()}

    def weight_files(self) -> list[Path]:
        """Return the safetensors files in the index's order.

        Raises `ModelError` when there are none or one is missing.
        """
        if (self.path / SINGLE).is_file():
            return [self.path / SINGLE]
        if not (self.path / INDEX).is_file():
            raise ModelError(f"{self.path} has no weights; {SINGLE}, or {INDEX} with its files, is needed")
        try:
            mapping = json.loads((self.path / INDEX).read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{self.path / INDEX} is not an index of weights: {error!r}") from error
        files = [self.path / file for file in dict.fromkeys(mapping.values())]
        for file in files:
            if not file.is_file():
                raise ModelError(f"{INDEX} names {file.name}, which is not in {self.path}")
        return files

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors by Hugging Face name, one at a time, read lazily from disk."""
        for file in self.weight_files():
            with safe_open(file, "pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - a safetensors reader is no mapping
                    yield name, reader.get_tensor(name)

    def _check_weights(self, name: str) -> None:
        try:
            for file in self.weight_files():
                check_formats(file)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{name}: {file} is not a complete safetensors file: {error}") from error

    def _check_vocabulary(self, name: str) -> None:
        """Check that tokenizer, config and embedding agree.

        A wrong pair trains on garbage without an error.
        """
        try:
            check_config(config := self.config)
            tokens = len(self.tokenizer)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
        except (ValueError, OSError, KeyError, TypeError, StrictDataclassError) as error:
            raise ModelError(f"{name}: config or tokenizer cannot be read: {error}") from error
        if tokens > config.vocab_size:
            raise ModelError(
                f"{name}: the tokenizer has {tokens} tokens, the model's vocabulary is {config.vocab_size}; "
                "the tokenizer that the model was trained with is needed"
            )
        rows = self._embedding_rows()
        if rows is not None and rows != config.vocab_size:
            raise ModelError(f"{name}: {EMBEDDING} has {rows} rows, {CONFIG} says vocab_size {config.vocab_size}")

    def _embedding_rows(self) -> int | None:
        for file in self.weight_files():
            with safe_open(file, "pt") as reader:
                if EMBEDDING in reader.keys():  # noqa: SIM118 - a safetensors reader is no mapping
                    return int(reader.get_slice(EMBEDDING).get_shape()[0])
        return None
