"""Tests of what runs on an accelerator. Each is skipped where torch sees none; `make gpu`, or `pytest -m gpu`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.training.toys import save_tiny_model, save_tokenizer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` is looked at."""
    here = f"{Path(__file__).parent.relative_to(ROOT).as_posix()}/"
    absent = pytest.mark.skip(reason="needs an NVIDIA GPU: torch sees none")
    for item in items:
        if item.nodeid.startswith(here):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(absent)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test begins and ends with a device that holds nothing of this process."""
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model of the training tests."""
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def larger_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for flash attention (heads of 64, grouped) and for bfloat16 to show what it rounds."""
    folder = save_tiny_model(
        tmp_path_factory.mktemp("models") / "larger",
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.05,
    )
    save_tokenizer(folder)
    return folder
